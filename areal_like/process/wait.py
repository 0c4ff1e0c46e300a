"""Waiting with a name, a limit and a voice."""

import logging
import time

from areal_like.process.errors import TimedOut

FIRST_LOG_S, MAX_LOG_INTERVAL_S = 10.0, 300.0

log = logging.getLogger(__name__)


class NamedWait:
    """`what` is waited for at most `limit_s` seconds, which `key` sets. Call `check` in every turn of the loop."""

    def __init__(self, what: str, limit_s: float, key: str) -> None:
        self.what, self.limit_s, self.key = what, limit_s, key
        self._began = time.monotonic()
        self._silence_s = FIRST_LOG_S
        self._next_word = FIRST_LOG_S

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._began

    def check(self) -> None:
        """Says at growing intervals what is still missing; raises TimedOut past the limit."""
        waited = self.waited_s
        if waited > self.limit_s:
            raise TimedOut(f"{self.key}: waited {waited:.0f} s for {self.what}; the limit is {self.limit_s:g} s")
        if waited >= self._next_word:
            log.info("still waiting for %s: %.0f s of %g s (%s)", self.what, waited, self.limit_s, self.key)
            self._silence_s = min(2 * self._silence_s, MAX_LOG_INTERVAL_S)
            self._next_word = waited + self._silence_s
