"""What all descendants of a process use, read often and cheaply."""

import os
from pathlib import Path
from typing import NamedTuple

from areal_like.process.process_tree import cpu_seconds_of, descendants_of, stat_cpu_seconds

LISTS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()
"""Kernels without it list the processes of the whole machine alone."""


class TreeUsage(NamedTuple):
    """`memory_bytes`: what they hold besides files, counted in each process that shares it."""

    processes: int
    memory_bytes: int
    cpu_s: float


def usage_below(pid: int) -> TreeUsage:
    """Of the descendants of a process that run, and of the children that they have waited for."""
    pids = _descendants(pid) if LISTS_CHILDREN else [each.pid for each in descendants_of(pid)]
    return TreeUsage(len(pids), sum(map(_memory_bytes, pids)), sum(map(cpu_seconds_of, pids)))


def tree_work(pid: int) -> tuple[float, float]:
    """CPU seconds of a process with its descendants, and the bytes that they have read and written."""
    pids = [pid, *(_descendants(pid) if LISTS_CHILDREN else [each.pid for each in descendants_of(pid)])]
    return sum(map(cpu_seconds_of, pids)), sum(_io_bytes(Path(f"/proc/{each}/io")) for each in pids)


def thread_work(pid: int, thread: int) -> tuple[float, float]:
    """The same of one thread."""
    task = Path(f"/proc/{pid}/task/{thread}")
    return stat_cpu_seconds(task / "stat"), _io_bytes(task / "io")


def _io_bytes(path: Path) -> float:
    """Those of calls and those of the disk, as files may be mapped; 0 where that cannot be read."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    counted = ("rchar", "wchar", "read_bytes", "write_bytes")
    return float(sum(int(line.split()[1]) for line in lines if line.startswith(tuple(f"{each}:" for each in counted))))


def _descendants(pid: int) -> list[int]:
    found, pending = [], [pid]
    while pending:
        children = _children(pending.pop())
        found += children
        pending += children
    return found


def _children(pid: int) -> list[int]:
    """A process is the child of the thread that has started it."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []
    children = []
    for task in tasks:
        try:
            text = Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            continue
        children += [int(word) for word in text.split()]
    return children


def _memory_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    held = [line.split() for line in text.splitlines() if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(int(words[1]) * 1024 for words in held)
