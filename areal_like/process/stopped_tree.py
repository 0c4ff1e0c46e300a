"""Whether a signal has stopped all that a process has started, also where a shell or `uv run` waits for the program."""

from collections import defaultdict
from pathlib import Path

from areal_like.process.process_tree import ProcessInfo, cpu_seconds_of, process_info
from areal_like.process.tree_usage import pids_below

STOPPED, ENDED = "T", "Z"
WAITS = "do_wait"
"""The function of the kernel in which a process waits for a child; not shown everywhere."""
WAITERS = ("sh", "bash", "dash", "ksh", "zsh", "uv")
"""Programs that do nothing else while a child runs."""


def waiting_cpu_s(pid: int) -> float | None:
    """None unless each process that this one has started is stopped, or only waits for such ones. Then the CPU time of
    those that wait, which grows where they do more than that."""
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
        return bool(below) and all(map(stands, below)) and _waits_for_a_child(process.pid)

    programs = children[pid]
    return sum(map(cpu_seconds_of, waiting)) if programs and all(map(stands, programs)) else None


def _waits_for_a_child(pid: int) -> bool:
    """Without a limit of its own, as a wait with one ends by itself."""
    return _read(f"/proc/{pid}/wchan") == WAITS or _read(f"/proc/{pid}/comm").strip() in WAITERS


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
