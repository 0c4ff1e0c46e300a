"""Seconds by name: what the time of a step was spent on.

with watch("train"):
    ...
values = watch.take()        # {"train": 0.21, ...}, and it begins again
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up wall-clock time by name; what is measured inside something else counts for both."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begun = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def elapsed(self) -> float:
        """Seconds since it was made, or since the last `take`."""
        return time.perf_counter() - self._begun

    def take(self) -> dict[str, float]:
        """What was measured so far; counting begins anew."""
        taken, self.seconds = self.seconds, {}
        self._begun = time.perf_counter()
        return taken
