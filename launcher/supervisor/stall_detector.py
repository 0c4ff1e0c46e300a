"""What is said, once, when a run stands still: for how long no step came, and what its processes wait for."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from areal_like.process.identity import Identity

STALL_S = 20.0
FIRST_STEP_S = 60.0
"""Before it the trainer loads its model, and where there are GPUs kernels are compiled."""
STALL_FACTOR = 3.0
"""Steps that take long by themselves are still after so many times as long as the last one."""
SLACK_S = 3.0
"""A step is seen so late at most, and logs are read to the second."""
TAIL_LINES = 200
LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} \S+ ([A-Z]+) (.*)")
WAITING = "waiting for"
WARNING_LEVELS = ("WARNING", "ERROR", "CRITICAL")


class LoggedProcess(Protocol):
    """A process with a log."""

    identity: Identity

    def last_lines(self, count: int) -> list[str]: ...


class LogLine(NamedTuple):
    """A line of a log, in the order of time."""

    time: float
    name: str
    level: str
    text: str


class StallDetector:
    """Counts from what moved last."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self._limit_s, self._is_first = FIRST_STEP_S, True
        self._since = clock()
        self._told = False

    def restarted(self) -> None:
        """Processes are on their way to a first step."""
        self._limit_s, self._is_first = FIRST_STEP_S, True
        self._moved()

    def stepped(self) -> None:
        took_s = self._clock() - self._since  # the first step's has loading in it
        self._limit_s, self._is_first = max(STALL_S, took_s if self._is_first else STALL_FACTOR * took_s), False
        self._moved()

    def _moved(self) -> None:
        self._since, self._told = self._clock(), False

    def words(self, processes: Iterable[LoggedProcess]) -> list[str]:
        """What there is to tell now; mostly nothing."""
        still_s = self._clock() - self._since
        if self._told or still_s < self._limit_s:
            return []
        self._told = True
        now = self._wall_clock()
        said = sorted(line for process in processes for line in log_lines(process))
        waiting = {line.name: line for line in said if WAITING in line.text and line.time >= now - still_s - SLACK_S}
        trouble = [line for line in said if line.level in WARNING_LEVELS and WAITING not in line.text][-1:]
        found = [f"{line.name} is {line.text.removeprefix('still ')}" for line in waiting.values()]
        found += [f"the newest warning, {now - line.time:.0f} s ago, of {line.name}: {line.text}" for line in trouble]
        if not found:
            found = [
                f"the last word, {now - line.time:.0f} s ago, is of {line.name}: {line.text}" for line in said[-1:]
            ]
        return [f"no step for {still_s:.0f} s", *(f"  {text}" for text in found or ["the logs do not say why"])]


def log_lines(process: LoggedProcess) -> Iterator[LogLine]:
    """Lines as our processes write them; of others nothing is known."""
    for line in process.last_lines(TAIL_LINES):
        if parts := LOG_LINE.fullmatch(line):
            written = time.mktime(time.strptime(parts[1], "%Y-%m-%d %H:%M:%S"))
            yield LogLine(written, process.identity.name, parts[2], parts[3])
