"""What starts, watches and ends the processes on one machine, as the supervisor sees it. Only data pass, so that an
agent may run on another machine."""

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from areal_like.process.child_process import ProcessUsage
from areal_like.process.identity import Identity
from areal_like.process.pulse import SlotSample
from launcher.plan.plan import Process

TAIL_LINES = 12


class FailureNote(NamedTuple):
    """The failure note that a process wrote before it ended."""

    time: float
    message: str
    kind: str


@dataclass(frozen=True)
class ProcessExit:
    """How a process ended. `code` is negative for a signal, as subprocess has it; `log` is empty without a file."""

    identity: Identity
    code: int
    time: float
    age_s: float
    log: str
    note: FailureNote | None
    last_lines: tuple[str, ...]
    usage: ProcessUsage

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def how(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        return f"killed by signal {-self.code} ({signal.Signals(-self.code).name})"


STOPPED = ("T", "t")
"""States of a process that a signal or a debugger has stopped."""


class ProcessSample(NamedTuple):
    """What a process does at the moment. `start` names this start of it. `state` is that of /proc; of a server that
    of a process of its engine if that is stopped. `work`: by slot the CPU seconds and the bytes read and written, where
    these count as progress."""

    name: str
    start: str
    state: str
    slots: tuple[SlotSample, ...]
    work: Mapping[int, tuple[float, float]]


class NodeAgent(Protocol):
    """Processes are named as in the plan; names of processes that do not run are ignored."""

    def start(self, process: Process, identity: Identity) -> str:
        """Fills in ports and the run's token. Returns the path of its log; empty without a file."""

    def exits(self) -> list[ProcessExit]:
        """Processes that ended since the last call, with all that they started. Never waits for a living one."""

    def signal(self, names: Iterable[str], number: int) -> None: ...

    def end(self, names: Iterable[str]) -> None:
        """Sends SIGTERM, and kills them after a moment."""

    def kill(self, names: Iterable[str]) -> None:
        """Returns when they have ended, with all that they started. One that hangs in the kernel may stay: it is among
        the samples until it ends, and then among the exits."""

    def last_lines(self, name: str, count: int) -> list[str]:
        """The end of its log."""

    def cpu_seconds(self) -> dict[str, float]:
        """What each running process has used until now, with all that it started."""

    def samples(self) -> list[ProcessSample]:
        """What each running process does."""

    def begin_hang_report(self, folder: str, culprits: Sequence[str]) -> None:
        """Starts to write the stacks of all processes, and what each waits for, to a new folder. `culprits`: a line for
        each process that hangs, for `culprit.txt` there."""

    def hang_report_is_done(self) -> bool: ...

    def kill_hung(self, name: str, start: str, message: str) -> None:
        """Kills this start of a process, whose exit then has a failure note with this message, of the kind "hung"."""

    def dump_stacks(self) -> None:
        """Makes every Python process of ours write its stack traces to logs/<role>-<index>.stacks."""

    def new_master_port(self) -> None:
        """Leases another MASTER_PORT for the next starts: the last one was taken by another process."""

    def close(self) -> None:
        """Releases the ports."""
