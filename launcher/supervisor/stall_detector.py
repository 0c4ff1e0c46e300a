"""Reports once when no training step comes: for how long, and what the processes wait for."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from areal_like.process.identity import Identity
from areal_like.process.pulse import COMPILING, LOADING
from launcher.agent.base import ProcessSample
from launcher.supervisor.hang_watch import waits_of

STALL_S = 20.0
FIRST_STEP_S = 60.0
"""Before the first step models are loaded and kernels compiled."""
STALL_FACTOR = 3.0
"""A run stalls when no step comes for this many times the duration of the last one."""
MEASURED_S = 5.0
"""At the end of a stall, how much CPU time each process uses in so long."""
BUSY_SHARE = 0.05
"""Of a core."""
STARTING = (LOADING, COMPILING)
TAIL_LINES = 200
LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} \S+ ([A-Z]+) (.*)")
WARNING_LEVELS = ("WARNING", "ERROR", "CRITICAL")


class LoggedProcess(Protocol):
    """A process with a log."""

    identity: Identity

    def last_lines(self, count: int) -> list[str]: ...


class LogLine(NamedTuple):
    """A line of a log; sorts by time."""

    time: float
    name: str
    level: str
    text: str


class StallDetector:
    """Measures the time since the last step or restart. `noun`: what is counted as a step."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        noun: str = "step",
    ) -> None:
        self._clock, self._wall_clock, self._noun = clock, wall_clock, noun
        self._limit_s, self._is_first = FIRST_STEP_S, True
        self._since = self._still_since = clock()
        self._reported = False
        self._measured: tuple[float, Mapping[str, float]] | None = None
        """When, and the CPU seconds of each process until then."""

    def restarted(self) -> None:
        """Processes were restarted: the next step is a first one again."""
        self._limit_s, self._is_first = FIRST_STEP_S, True
        self._reset()

    def stepped(self) -> None:
        took_s = self._clock() - self._since  # of a first step: with loading
        self._limit_s, self._is_first = max(STALL_S, took_s if self._is_first else STALL_FACTOR * took_s), False
        self._reset()

    def _reset(self) -> None:
        self._since = self._still_since = self._clock()
        self._reported, self._measured = False, None

    def report_lines(
        self,
        processes: Sequence[LoggedProcess],
        samples: Sequence[ProcessSample],
        cpu_seconds: Callable[[], Mapping[str, float]],
    ) -> list[str]:
        """The report, once per stall; otherwise empty. Not while a process loads or compiles. `cpu_seconds`: what each
        process has used."""
        if any(slot.phase in STARTING for sample in samples for slot in sample.slots):
            self._still_since, self._measured = self._clock(), None
        still_s = self._clock() - self._still_since
        if self._reported or still_s < self._limit_s - MEASURED_S:
            return []
        if self._measured is None:
            self._measured = self._clock(), cpu_seconds()
        if still_s < self._limit_s:
            return []
        self._reported = True
        now = self._wall_clock()
        lines = sorted(line for process in processes for line in log_lines(process))
        trouble = [line for line in lines if line.level in WARNING_LEVELS][-1:]
        reasons = waits_of(samples)
        reasons += [f"the newest warning, {now - line.time:.0f} s ago, by {line.name}: {line.text}" for line in trouble]
        if not reasons:
            reasons = [
                f"the newest log line, {now - line.time:.0f} s ago, by {line.name}: {line.text}" for line in lines[-1:]
            ]
        reasons = reasons or ["the logs give no reason"]
        return [
            f"no {self._noun} for {still_s:.0f} s",
            *(f"  {text}" for text in [*reasons, *self._busy_line(cpu_seconds)]),
        ]

    def _busy_line(self, cpu_seconds: Callable[[], Mapping[str, float]]) -> Iterator[str]:
        assert self._measured is not None
        at, before = self._measured
        if (passed_s := self._clock() - at) <= 0:
            return
        shares = {name: (now - before[name]) / passed_s for name, now in cpu_seconds().items() if name in before}
        busy = [f"{name} ({share:.0%} of a core)" for name, share in shares.items() if share >= BUSY_SHARE]
        yield f"in the last {passed_s:.0f} s {', '.join(busy) or 'no process'} used the CPU"


def log_lines(process: LoggedProcess) -> Iterator[LogLine]:
    """The lines in the format of our own processes."""
    for line in process.last_lines(TAIL_LINES):
        if parts := LOG_LINE.fullmatch(line):
            try:
                at = time.mktime(time.strptime(parts[1], "%Y-%m-%d %H:%M:%S"))
            except (ValueError, OverflowError):
                continue  # printed by other code: there is no such time
            yield LogLine(at, process.identity.name, parts[2], parts[3])
