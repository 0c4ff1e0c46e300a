"""Stopwatch: wall-clock time of a step by name.

with watch("train"):
    ...
values = watch.take()        # {"train": 0.21, ...}, and restarts
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from areal_like.process import pulse


class Stopwatch:
    """Adds up wall-clock time by name; nested measurements count for both names."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begun = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        pulse.advance()
        try:
            yield
        finally:
            pulse.advance()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def elapsed(self) -> float:
        """Seconds since it was created, or since the last `take`."""
        return time.perf_counter() - self._begun

    def take(self) -> dict[str, float]:
        """Returns the times so far, and restarts."""
        taken, self.seconds = self.seconds, {}
        self._begun = time.perf_counter()
        return taken
