"""Identifies a process across hosts and restarts, and checks whether it still runs."""

import os
import socket
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class OwnerProcess(NamedTuple):
    """A process, distinct from every other, also from a later one with the same pid.

    `space` is the pid namespace: containers on one machine share the boot id, but not pids.
    """

    host: str
    boot: str
    space: str
    pid: int
    started: int

    def is_local(self, other: "OwnerProcess") -> bool:
        """Whether both are in one pid namespace, so that one can check whether the other runs. The host's name counts
        too, as machines resumed from one snapshot have the same boot id."""
        return self[:3] == other[:3]


def this_process() -> OwnerProcess:
    pid = os.getpid()
    boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    running = started_at(pid)
    assert running is not None
    return OwnerProcess(socket.gethostname(), boot, os.readlink(PROC / "self/ns/pid"), pid, running)


def is_alive(owner: OwnerProcess) -> bool | None:
    """Whether a process of this machine runs; a zombie does not. None where that cannot be seen, as /proc hides
    processes of other users (hidepid)."""
    try:
        started = started_at(owner.pid)
        if started is None:
            os.kill(owner.pid, 0)
    except PermissionError:
        return None
    except ProcessLookupError:
        return False
    return started == owner.started


def is_seen_here(owner: OwnerProcess | None, me: OwnerProcess) -> bool:
    """Whether the process is of this machine, and shown to this user."""
    return owner is not None and owner.is_local(me) and is_alive(owner) is not None


def started_at(pid: int) -> int | None:
    """Start time of a process, in ticks since boot; None if there is no such process."""
    try:
        line = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the command, may contain blanks and brackets.
    fields = line.rpartition(b")")[2].split()
    return None if fields[0] in b"ZXx" else int(fields[19])
