"""What a program in the sandbox may use, how it ended, and what a kind of sandbox is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from areal_like.process.errors import InfrastructureError

STARVED_SHARE = 0.5
"""Of its time. A program that only competes with another one per processor gets half of one, and is not starved."""


class SandboxError(InfrastructureError):
    """The sandbox does not work here. It is never the fault of the program."""


@dataclass(frozen=True)
class SandboxLimits:
    """Of one program with all processes that it starts."""

    wall_s: float = 10.0
    """From its start; the start of the sandbox does not count."""
    cpu_s: float = 10.0
    """Of each process."""
    memory_gb: float = 1.0
    """Address space of each process, and the memory of all together."""
    processes: int = 32
    """Processes and threads."""
    files_mb: float = 64.0
    """The size of a file; with bubblewrap, of all files together."""
    output_kb: float = 1024.0
    """Of stdout and stderr each; a program that prints more is ended."""


class End(StrEnum):
    """Why a program ended: by itself, or because of a limit."""

    EXIT = "exit"
    TIME = "time"
    CPU = "cpu"
    MEMORY = "memory"
    PROCESSES = "processes"
    OUTPUT = "output"
    STOPPED = "stopped"
    """The caller needed it no more."""


class SandboxResult(NamedTuple):
    """`exit_code` is negative for a signal. Output beyond the limit is cut off. `wall_s`: from the start of the
    program, not of the sandbox. `starved_s`: for so long of it no processor was free for the program."""

    end: End
    exit_code: int
    stdout: bytes
    stderr: bytes
    wall_s: float
    starved_s: float = 0.0

    @property
    def is_starved(self) -> bool:
        """It exceeded its time because the machine had no processor for it: that says nothing about the program."""
        return self.end is End.TIME and self.starved_s > STARVED_SHARE * self.wall_s

    @property
    def is_success(self) -> bool:
        return self.end is End.EXIT and self.exit_code == 0


@dataclass(frozen=True)
class Cell:
    """Where one program runs. `command` starts `confine` there, which is given the number of a descriptor as last
    argument; `orders` are what it does besides the limits."""

    command: list[str]
    orders: dict[str, Any]
    kill: Callable[[int], None]
    """Ends the process that the command started, given its id, with all that run below it."""
    env: dict[str, str] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None


class Backend(Protocol):
    """A kind of sandbox."""

    name: str

    def missing(self) -> str:
        """What it needs and this machine lacks; "" if nothing is known to be missing."""

    def weaknesses(self) -> tuple[str, ...]:
        """What it does not hold."""

    def open_cell(self, limits: SandboxLimits, readable: Sequence[str]) -> Cell: ...
