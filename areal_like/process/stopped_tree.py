"""Whether a signal has stopped all that a process has started, also where a shell or `uv run` waits for the program."""

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from areal_like.process.process_tree import ProcessInfo, cpu_seconds_of, process_info
from areal_like.process.tree_usage import pids_below

STOPPED, ENDED = "T", "Z"
WAITS_FOR_ANSWERS = ("01", "02")
"""States of TCP sockets: connected, and about to be."""


def waiting_cpu_s(pid: int) -> float | None:
    """None unless each process that this one has started is stopped, or only waits for such ones: it has no connection
    from which something may come. Then the CPU time of those that wait, which grows where they do more than that."""
    children: dict[int, list[ProcessInfo]] = defaultdict(list)
    for each in map(process_info, pids_below(pid)):
        if each is not None and each.state != ENDED:
            children[each.parent].append(each)
    waiting: list[int] = []

    def stands(process: ProcessInfo) -> bool:
        if process.state == STOPPED:
            return True
        waiting.append(process.pid)
        below = children[process.pid]
        return bool(below) and all(map(stands, below)) and not _has_connection(process.pid)

    programs = children[pid]
    return sum(map(cpu_seconds_of, waiting)) if programs and all(map(stands, programs)) else None


def _has_connection(pid: int) -> bool:
    """Also where that cannot be read."""
    held = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                held.add(os.readlink(entry.path))
    except OSError:
        return True
    return any(target.startswith("socket:") for target in held) and not held.isdisjoint(_connections(pid))


def _connections(pid: int) -> Iterator[str]:
    """Of all processes in the same network, as their descriptors name them."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):  # the process has ended, or the machine has no such network
            for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines():
                fields = line.split()
                if fields[3] in WAITS_FOR_ANSWERS:
                    yield f"socket:[{fields[9]}]"
