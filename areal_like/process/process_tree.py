"""Processes as /proc shows them: who descends from whom, and how all of them are ended."""

import ctypes
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
PAUSE_S = 0.01
KILL_TIMEOUT_S = 30.0
"""A process that hangs in the kernel (a dead network file system, say) cannot be killed; it is named and left."""
ORPHANS_TIMEOUT_S = 5.0
"""So long the launcher looks after nothing else. What is left even then is ended with the run."""

RESOURCE_TRACKER = b"from multiprocessing.resource_tracker import main"
"""In the command of a process of Python's that removes shared memory when those who made it are gone, and then ends."""
RESOURCE_TRACKER_S = 10.0

_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
"""Looked up once: between fork and exec nothing should be."""


class ProcessInfo(NamedTuple):
    """A process at the moment of looking."""

    pid: int
    parent: int
    session: int
    state: str


def become_subreaper() -> None:
    """Orphans below this process fall to it, and not to the machine's first process."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(sign: int = signal.SIGKILL) -> None:
    """The kernel sends this signal when the thread that started this process is gone."""
    _prctl(PR_SET_PDEATHSIG, sign)


def set_process_name(name: str) -> None:
    """What `ps` and `top` show for this process."""
    _prctl(PR_SET_NAME, name.encode()[:15])


def _prctl(option: int, value: int | bytes) -> None:
    if _PRCTL is None or _PRCTL(option, value, 0, 0, 0) != 0:
        raise OSError("prctl is refused; runs are started on Linux only")


def all_processes() -> dict[int, ProcessInfo]:
    """All processes that there are."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (seen := process_info(int(name))) is not None:
            found[seen.pid] = seen
    return found


def process_info(pid: int) -> ProcessInfo | None:
    """One process; None where there is none any more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, _, session = text.rpartition(")")[2].split()[:4]
    return ProcessInfo(pid, int(parent), int(session), state)


def has_handler(pid: int, sign: int) -> bool:
    """Whether a process has a handler for a signal that would end it otherwise."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    mask = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (sign - 1) & 1)


def descendants_of(pid: int) -> list[ProcessInfo]:
    """All descendants of a process, parents first."""
    children: dict[int, list[ProcessInfo]] = {}
    for seen in all_processes().values():
        children.setdefault(seen.parent, []).append(seen)
    found, waiting = [], [pid]
    while waiting:
        born = children.get(waiting.pop(), [])
        found += born
        waiting += [seen.pid for seen in born]
    return found


def kill(pids: Iterable[int], sign: int = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            continue


def kill_descendants() -> list[int]:
    """Kills every descendant of this process until none is left, and collects what falls to it; returns those that
    would not die. Only for the end: it also collects the children of others' objects."""
    began = time.monotonic()
    while alive := descendants_of(os.getpid()):
        if time.monotonic() > began + KILL_TIMEOUT_S:
            return [seen.pid for seen in alive]
        patient = time.monotonic() < began + RESOURCE_TRACKER_S
        kill(seen.pid for seen in alive if seen.state != "Z" and not (patient and is_resource_tracker(seen.pid)))
        _collect_all()
        time.sleep(PAUSE_S)
    return []


def is_resource_tracker(pid: int) -> bool:
    """Whether it is one of Python's resource trackers: left alone for a moment, it cleans up and ends by itself."""
    try:
        return RESOURCE_TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _collect_all() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def reap_orphans(known: set[int]) -> None:
    """What an ended process of ours left behind, and has ended since, is not kept as a zombie. Asks the kernel for
    dead children alone: a large machine has thousands of processes."""
    try:
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid not in known:
            _collect(dead.si_pid)
    except ChildProcessError:
        return


def kill_orphans(session: int, marks: Mapping[str, str], known: set[int]) -> None:
    """Kills what a dead child of this process has left: orphans of its session, or with these variables in their
    environment, and all below them. Returns when they are gone, or after a moment: as they die, what they started
    falls to this process in turn."""
    me, began = os.getpid(), time.monotonic()
    until = began + ORPHANS_TIMEOUT_S
    doomed: set[int] = set()
    while time.monotonic() < until:
        everyone = all_processes().values()
        orphans = [seen for seen in everyone if seen.parent == me and seen.pid not in known]
        mine = [
            seen.pid
            for seen in orphans
            if seen.pid in doomed or seen.session == session or marks.items() <= _environment(seen.pid).items()
        ]
        if not mine and not _end_soon(orphans, everyone):
            return
        found = {*mine, *(seen.pid for pid in mine for seen in descendants_of(pid))}
        doomed |= found
        patient = time.monotonic() < began + ORPHANS_TIMEOUT_S / 2
        kill(pid for pid in found if not (patient and is_resource_tracker(pid)))
        for pid in mine:
            _collect(pid)
        time.sleep(PAUSE_S)


def _collect(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _end_soon(orphans: Iterable[ProcessInfo], everyone: Iterable[ProcessInfo]) -> bool:
    """Whether the memory of one is gone already, and with it its name, while it still has its children. That it is a
    zombie says nothing of its other threads."""
    parents = {seen.parent for seen in everyone}
    return any(seen.pid in parents and not _environment(seen.pid) for seen in orphans)


def _environment(pid: int) -> dict[str, str]:
    """What a process was started with; empty where it may not be read."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in content.decode("utf-8", "replace").split("\0"))
    return {name: value for name, _, value in pairs}
