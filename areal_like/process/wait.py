"""A named wait with a timeout and progress log."""

import logging
import time

from areal_like.process import pulse
from areal_like.process.errors import TimedOut

FIRST_LOG_S, MAX_LOG_INTERVAL_S = 10.0, 300.0

log = logging.getLogger(__name__)


class NamedWait:
    """Waits at most `limit_s` seconds, set by `key`, for `what`. Call `check` in every iteration of the loop."""

    def __init__(self, what: str, limit_s: float, key: str, whom: str = "") -> None:
        """`whom`: the name of the process that it waits for, if that is one."""
        self.what, self.limit_s, self.key, self.whom = what, limit_s, key, whom
        self._began = time.monotonic()
        self._interval_s = FIRST_LOG_S
        self._next_log_s = FIRST_LOG_S

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._began

    def check(self) -> None:
        """Logs the wait at growing intervals; raises TimedOut past the limit."""
        elapsed_s = self.waited_s
        pulse.waits(self.what, self.whom, self.key, self.limit_s)
        if elapsed_s > self.limit_s:
            raise TimedOut(f"{self.key}: waited {elapsed_s:.0f} s for {self.what}; the limit is {self.limit_s:g} s")
        if elapsed_s >= self._next_log_s:
            log.info("still waiting for %s: %.0f s of %g s (%s)", self.what, elapsed_s, self.limit_s, self.key)
            self._interval_s = min(2 * self._interval_s, MAX_LOG_INTERVAL_S)
            self._next_log_s = elapsed_s + self._interval_s

    def over(self) -> None:
        """To be called at its end in an event loop, whose progress says nothing about one of its waits."""
        pulse.wait_is_over(self.what)
