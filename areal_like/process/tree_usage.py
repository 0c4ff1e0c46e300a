"""What all descendants of a process use, read often and cheaply."""

import os
from pathlib import Path
from typing import NamedTuple

from areal_like.process.process_tree import cpu_seconds_of, descendants_of, process_info, stat_cpu_seconds, threads_of

LISTS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()
"""Kernels without it list the processes of the whole machine alone."""


class TreeUsage(NamedTuple):
    """`memory_bytes`: as `memory_bytes` below, counted in each process that shares it."""

    processes: int
    memory_bytes: int
    cpu_s: float


def usage_below(pid: int) -> TreeUsage:
    """Of the descendants of a process that run, and of the children that they have waited for."""
    pids = pids_below(pid)
    return TreeUsage(len(pids), sum(map(memory_bytes, pids)), sum(map(cpu_seconds_of, pids)))


def pids_below(pid: int) -> list[int]:
    """Of all descendants of a process, parents first."""
    if not LISTS_CHILDREN:
        return [each.pid for each in descendants_of(pid)]
    found, pending = [], [pid]
    while pending:
        children = _children(pending.pop())
        found += children
        pending += children
    return found


def memory_bytes(pid: int) -> int:
    """What a process holds besides files, also where that was moved from memory to the disk."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    held = [line.split() for line in text.splitlines() if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:"))]
    return sum(int(words[1]) * 1024 for words in held)


def tree_work(pid: int) -> tuple[float, float]:
    """CPU seconds of a process with its descendants, and the bytes that they have read and written."""
    pids = [pid, *pids_below(pid)]
    return sum(map(cpu_seconds_of, pids)), sum(_io_bytes(Path(f"/proc/{each}/io")) for each in pids)


def states_of_tree(pid: int) -> list[str]:
    """Of a process first, then of its descendants, as letters of /proc."""
    return ["" if (info := process_info(each)) is None else info.state for each in (pid, *pids_below(pid))]


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


def _children(pid: int) -> list[int]:
    """A process is the child of the thread that has started it."""
    children = []
    for task in threads_of(pid):
        try:
            text = (task / "children").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            continue
        children += [int(word) for word in text.split()]
    return children
