"""All trackers of a run, each in a thread of its own: a service that is slow or away holds nobody up."""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

from areal_like.config.sections.trackers import TRACKERS, is_enabled
from areal_like.observe.extras import Extras
from areal_like.observe.trackers import open_tracker
from areal_like.observe.trackers.base import Tracker
from areal_like.observe.trackers.requirements import PACKAGES, is_installed, missing_requirements
from areal_like.observe.trackers.writer_thread import TrackerThread
from areal_like.process.run import Run


class Trackers:
    """One that fails says so once, and the run goes on without it. `flush_timeout_s` is how long `close` waits."""

    def __init__(self, say: Callable[[str], None], flush_timeout_s: float) -> None:
        self._say, self._limit_s = say, flush_timeout_s
        self._workers: list[TrackerThread] = []

    @classmethod
    def of(cls, run: Run, say: Callable[[str], None]) -> Self:
        """Those that the run's configuration wants. A plan has refused what is missing; a trainer that is started by
        hand has no plan."""
        config = run.config.stats_logger
        trackers = cls(say, config.flush_timeout_s)
        missing = {
            lack.tracker: lack for lack in missing_requirements(config, set(filter(is_installed, PACKAGES)), os.environ)
        }
        for name in TRACKERS:
            if name in missing:
                say(f"{missing[name].key}: {missing[name].reason}; the run goes on without it")
            elif is_enabled(name, config):
                trackers.add(name, partial(open_tracker, name, run))
        return trackers

    def add(self, name: str, make: Callable[[], Tracker]) -> None:
        """`make` opens one, in its thread."""
        self._workers.append(TrackerThread(name, make, self._say))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the values of a step; a step may come again after a recovery."""
        for worker in self._workers:
            worker.put(lambda tracker: tracker.log(step, values))

    def log_extras(self, extras: Extras) -> None:
        """Sends samples and distributions to those that want them of this step."""
        for worker in self._workers:
            worker.put(lambda tracker: tracker.log_extras(extras))

    def rewind(self, step: int) -> None:
        """What comes next follows after `step` completed steps."""
        for worker in self._workers:
            worker.put(lambda tracker: tracker.rewind(step))

    def close(self) -> None:
        """Sends what is left; gives up after the limit."""
        for worker in self._workers:
            worker.end()
        end = time.monotonic() + self._limit_s
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
            if worker.is_alive():
                worker.abandon(f"has not sent everything {self._limit_s:g} s after the run (flush_timeout_s)")
        self._workers.clear()
