"""What is said while processes start: seldom, as a start that goes well needs no words, and never a mere warning of an
engine, which reads like one of the run."""

import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from areal_like.process.identity import Identity

REPORT_INTERVAL_S = 30.0
"""Between two words, and before the first: most servers are ready by then."""
TAIL_LINES = 50
WARNING_LINE = re.compile(r"\bWARN(ING)?\b|\w*Warning: |^\s*warnings\.warn\(")


class StartingProcess(Protocol):
    """A process that is not ready yet."""

    identity: Identity

    @property
    def age_s(self) -> float: ...

    def last_lines(self, count: int) -> list[str]: ...


class StartupProgress:
    """Counts from the last word."""

    def __init__(self, limit: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit` says how long is waited, and which key says so."""
        self._limit, self._clock = limit, clock
        self._told: float | None = None

    def words(self, missing: Sequence[StartingProcess]) -> list[str]:
        """What there is to tell now of processes that are not ready; mostly nothing."""
        now = self._clock()
        late = [child for child in missing if child.age_s >= REPORT_INTERVAL_S]
        if not late or (self._told is not None and now - self._told < REPORT_INTERVAL_S):
            return []
        self._told = now
        return [
            f"  waiting for {each.identity.name} ({each.age_s:.0f} s of {self._limit}){_newest(each)}" for each in late
        ]


def _newest(child: StartingProcess) -> str:
    """Its newest line that is no warning."""
    lines = child.last_lines(TAIL_LINES)
    if not lines:
        return ": nothing in its log yet"
    return next((f": {line}" for line in reversed(lines) if WARNING_LINE.search(line) is None), "")
