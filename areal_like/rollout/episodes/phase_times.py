"""How long an episode was in each phase. Samples that are in one at the same time count once."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

GENERATE, TOOLS, REWARD = "generate_s", "tools_s", "reward_s"
ANY, OTHER = "any_s", "other_s"


class PhaseTimes:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._begun = now, now()
        self._open: Counter[str] = Counter()
        self._since: dict[str, float] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, phase: str) -> "OpenPhases":
        return OpenPhases(self, (phase, ANY))

    @contextmanager
    def timed_besides(self, phase: str, other: str) -> Iterator[None]:
        """Counts as `phase` the time in which nobody is in the other one."""
        begun, before = self._now(), self._seconds[other]
        try:
            with OpenPhases(self, (ANY,)):
                yield
        finally:
            self._seconds[phase] += self._now() - begun - (self._seconds[other] - before)

    def open(self, phases: Sequence[str]) -> None:
        now = self._now()
        for each in phases:
            if not self._open[each]:
                self._since[each] = now
            self._open[each] += 1

    def close(self, phases: Sequence[str]) -> None:
        now = self._now()
        for each in phases:
            self._open[each] -= 1
            if not self._open[each]:
                self._seconds[each] += now - self._since[each]

    def totals(self, with_other: bool = False) -> dict[str, float]:
        """Seconds by phase, and `total_s`. `with_other`: also those in no phase."""
        total = self._now() - self._begun
        seconds = {phase: value for phase, value in self._seconds.items() if phase != ANY}
        return {**seconds, **({OTHER: total - self._seconds[ANY]} if with_other else {}), "total_s": total}


class OpenPhases:
    """For `with`. A class, since a generator made for each call of an episode costs more."""

    __slots__ = ("_phases", "_times")

    def __init__(self, times: PhaseTimes, phases: Sequence[str]) -> None:
        self._times, self._phases = times, phases

    def __enter__(self) -> None:
        self._times.open(self._phases)

    def __exit__(self, *_: object) -> None:
        self._times.close(self._phases)
