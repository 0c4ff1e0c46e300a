"""Progress messages while processes start: which ones are not ready yet, and the newest line of their logs."""

import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from areal_like.process.identity import Identity

REPORT_INTERVAL_S = 30.0
"""Between two reports, and before the first: most servers are ready by then."""
TAIL_LINES = 50
WARNING_LINE = re.compile(r"\bWARN(ING)?\b|\w*Warning: |^\s*warnings\.warn\(")


class StartingProcess(Protocol):
    """A process that is not ready yet."""

    identity: Identity

    @property
    def age_s(self) -> float: ...

    def last_lines(self, count: int) -> list[str]: ...


class StartupProgress:
    """Says which processes are not ready, every `REPORT_INTERVAL_S`."""

    def __init__(self, limit: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit` names the timeout and the key that sets it."""
        self._limit, self._clock = limit, clock
        self._reported_at: float | None = None

    def report_lines(self, missing: Sequence[StartingProcess]) -> list[str]:
        """A line per process that is late, when a report is due; otherwise empty."""
        now = self._clock()
        late = [child for child in missing if child.age_s >= REPORT_INTERVAL_S]
        if not late or (self._reported_at is not None and now - self._reported_at < REPORT_INTERVAL_S):
            return []
        self._reported_at = now
        return [
            f"  waiting for {each.identity.name} ({each.age_s:.0f} s of {self._limit}){_newest(each)}" for each in late
        ]


def _newest(child: StartingProcess) -> str:
    """Its newest log line that is no warning: a warning of an engine reads like one of the run."""
    lines = child.last_lines(TAIL_LINES)
    if not lines:
        return ": nothing in its log yet"
    return next((f": {line}" for line in reversed(lines) if WARNING_LINE.search(line) is None), "")
