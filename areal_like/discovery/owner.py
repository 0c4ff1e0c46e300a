"""Which process made an entry, and whether it still runs."""

import os
import socket
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class OwnerProcess(NamedTuple):
    """A process that is told apart from every other, also from a later one with its number.

    `space` is the namespace of process numbers: containers on one machine share the boot id, but not their numbers.
    """

    host: str
    boot: str
    space: str
    pid: int
    started: int

    def is_local(self, other: "OwnerProcess") -> bool:
        """Whether both count their processes alike, so that one can see if the other runs.

        The host's name counts too, as machines woken from one snapshot have the same boot id.
        """
        return self[:3] == other[:3]


def this_process() -> OwnerProcess:
    pid = os.getpid()
    boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    running = started_at(pid)
    assert running is not None
    return OwnerProcess(socket.gethostname(), boot, os.readlink(PROC / "self/ns/pid"), pid, running)


def is_alive(owner: OwnerProcess) -> bool:
    """Whether the process, one of this machine, is there; one that has ended and was not yet reaped is not."""
    return started_at(owner.pid) == owner.started


def started_at(pid: int) -> int | None:
    """When the process was started, in ticks since the boot; None for one that is not there."""
    try:
        line = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the command, may hold blanks and brackets of its own.
    fields = line.rpartition(b")")[2].split()
    return None if fields[0] in b"ZXx" else int(fields[19])
