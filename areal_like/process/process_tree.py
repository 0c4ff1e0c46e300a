"""Process tree from /proc: descendants, subreaper, and killing until none is left."""

import ctypes
import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
PAUSE_S = 0.01
KILL_TIMEOUT_S = 30.0
"""A process that hangs in the kernel (such as on a dead network file system) cannot be killed: it is reported."""
ORPHANS_TIMEOUT_S = 5.0
"""The launcher is blocked for so long. What is left then is killed at the end of the run."""

RESOURCE_TRACKER = b"from multiprocessing.resource_tracker import main"
"""In the command of Python's process that removes shared memory after its creators have ended, and then exits."""
RESOURCE_TRACKER_S = 10.0

_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
"""Looked up once, as nothing may be looked up between fork and exec."""


class ProcessInfo(NamedTuple):
    """A process, as it was when read."""

    pid: int
    parent: int
    session: int
    state: str
    """Of its main thread, or of another one where only that one has ended."""


def become_subreaper() -> None:
    """Orphaned descendants become children of this process instead of init's."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(sign: int = signal.SIGKILL) -> None:
    """The kernel sends this signal when the thread that started this process ends."""
    _prctl(PR_SET_PDEATHSIG, sign)


def set_process_name(name: str) -> None:
    """Sets the name that `ps` and `top` show."""
    _prctl(PR_SET_NAME, name.encode()[:15])


def _prctl(option: int, value: int | bytes) -> None:
    if _PRCTL is None or _PRCTL(option, value, 0, 0, 0) != 0:
        raise OSError("prctl is refused; runs are started on Linux only")


def all_processes() -> dict[int, ProcessInfo]:
    """All processes of the machine, by pid."""
    processes = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := process_info(int(name))) is not None:
            processes[process.pid] = process
    return processes


def process_info(pid: int) -> ProcessInfo | None:
    """One process; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last of others, with hidepid
        return None
    state, parent, _, session = _fields(text)[:4]
    return ProcessInfo(pid, int(parent), int(session), _state_of_threads(pid) if state == "Z" else state)


def _fields(stat: str) -> list[str]:
    return stat.rpartition(")")[2].split()


def _state_of_threads(pid: int) -> str:
    """A killed process whose main thread has ended, and another hangs in the kernel, is no zombie."""
    states = []
    for path in threads_of(pid):
        with suppress(OSError):
            states.append(_fields((path / "stat").read_text(encoding="utf-8", errors="replace"))[0])
    return min((each for each in states if each not in "ZX"), default="Z")


def threads_of(pid: int) -> list[Path]:
    """The folder of each of its threads; none if it has ended. `Path.glob` would fail where it ends meanwhile."""
    folder = Path(f"/proc/{pid}/task")
    try:
        return [folder / name for name in os.listdir(folder)]
    except (FileNotFoundError, ProcessLookupError):
        return []


def has_handler(pid: int, sign: int) -> bool:
    """Whether a process handles a signal that would end it otherwise."""
    return _is_in_mask(pid, "SigCgt", sign)


def ignores(pid: int, sign: int) -> bool:
    return _is_in_mask(pid, "SigIgn", sign)


def _is_in_mask(pid: int, name: str, sign: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    mask = next((line.split()[1] for line in lines if line.startswith(f"{name}:")), "0")
    return bool(int(mask, 16) >> (sign - 1) & 1)


def descendants_of(pid: int) -> list[ProcessInfo]:
    """All descendants of a process, parents first."""
    return _below(pid, _children(all_processes()))


def _children(processes: Mapping[int, ProcessInfo]) -> dict[int, list[ProcessInfo]]:
    children: dict[int, list[ProcessInfo]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    return children


def _below(pid: int, children: Mapping[int, list[ProcessInfo]]) -> list[ProcessInfo]:
    descendants, pending = [], [pid]
    while pending:
        of_one = children.get(pending.pop(), [])
        descendants += of_one
        pending += [process.pid for process in of_one]
    return descendants


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """CPU time of processes with all their descendants that run, by the same names."""
    children = _children(all_processes())
    used = {}
    for name, pid in pids.items():
        used[name] = sum(map(cpu_seconds_of, (pid, *(process.pid for process in _below(pid, children)))))
    return used


def cpu_seconds_of(pid: int) -> float:
    """Of one process, and of its children that it has waited for."""
    return stat_cpu_seconds(Path(f"/proc/{pid}/stat"))


def stat_cpu_seconds(path: Path) -> float:
    """By the `stat` of a process or thread."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    ticks = text.rpartition(")")[2].split()[11:15]  # its own, and those of children that it has waited for
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def kill(pids: Iterable[int], sign: int = signal.SIGKILL) -> None:
    """Not those that have become another user's, as by sudo."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sign)


def kill_descendants() -> list[int]:
    """Kills every descendant of this process until none is left, and reaps them; returns those that cannot be killed.
    Only for the end of a process: it also reaps children that other objects wait for."""
    began = time.monotonic()
    while alive := descendants_of(os.getpid()):
        if time.monotonic() > began + KILL_TIMEOUT_S:
            return [each.pid for each in alive]
        in_grace_period = time.monotonic() < began + RESOURCE_TRACKER_S
        kill(
            each.pid for each in alive if each.state != "Z" and not (in_grace_period and is_resource_tracker(each.pid))
        )
        _reap_all()
        time.sleep(PAUSE_S)
    return []


def is_resource_tracker(pid: int) -> bool:
    """Whether it is one of Python's resource trackers, which clean up and exit by themselves after a moment."""
    try:
        return RESOURCE_TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _reap_all() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def reap_orphans(known: set[int]) -> None:
    """Reaps ended orphans, but not the children in `known`. Asks the kernel only for ended children: a large machine
    has thousands of processes."""
    try:
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid not in known:
            _reap(dead.si_pid)
    except ChildProcessError:
        return


def kill_orphans(session: int, marks: Mapping[str, str], known: set[int], limit_s: float = ORPHANS_TIMEOUT_S) -> None:
    """Kills the orphans of an ended child and their descendants: processes of its session, or with the variables
    `marks` in their environment. Returns when none is left, or after `limit_s`, but looks at least once: as they die,
    their children become children of this process in turn."""
    me, began = os.getpid(), time.monotonic()
    killed: set[int] = set()
    while True:
        processes = all_processes().values()
        orphans = [each for each in processes if each.parent == me and each.pid not in known]
        mine = [
            each.pid
            for each in orphans
            if each.pid in killed or each.session == session or marks.items() <= _environment(each.pid).items()
        ]
        if not mine and not _end_soon(orphans, processes):
            return
        targets = {*mine, *(each.pid for pid in mine for each in descendants_of(pid))}
        killed |= targets
        in_grace_period = time.monotonic() < began + limit_s / 2
        kill(pid for pid in targets if not (in_grace_period and is_resource_tracker(pid)))
        for pid in mine:
            _reap(pid)
        if time.monotonic() >= began + limit_s:
            return
        time.sleep(PAUSE_S)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _end_soon(orphans: Iterable[ProcessInfo], processes: Iterable[ProcessInfo]) -> bool:
    """Whether an orphan's memory, and so its environment, is gone while it still has children. Its state does not tell:
    a zombie may have running threads."""
    parents = {each.parent for each in processes}
    return any(each.pid in parents and not _environment(each.pid) for each in orphans)


def _environment(pid: int) -> dict[str, str]:
    """A process's environment at its start; empty if it cannot be read."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in content.decode("utf-8", "replace").split("\0"))
    return {name: value for name, _, value in pairs}
