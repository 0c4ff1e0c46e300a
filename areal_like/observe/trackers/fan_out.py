"""Sends to all trackers of a run, each in its thread, so that a slow or unreachable service delays nothing."""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

from areal_like.config.sections.trackers import TRACKERS, is_enabled
from areal_like.observe.tracker_samples import Extras
from areal_like.observe.trackers import open_tracker
from areal_like.observe.trackers.base import Tracker
from areal_like.observe.trackers.requirements import is_installed, missing_requirements, tracker_packages
from areal_like.observe.trackers.writer_thread import TrackerThread
from areal_like.process.run import Run


class Trackers:
    """A tracker that fails is reported once, and the run continues without it. `flush_timeout_s`: timeout of
    `close`."""

    def __init__(self, warn: Callable[[str], None], flush_timeout_s: float) -> None:
        self._warn, self._limit_s = warn, flush_timeout_s
        self._workers: list[TrackerThread] = []

    @classmethod
    def of(cls, run: Run, warn: Callable[[str], None]) -> Self:
        """The trackers that the run's configuration enables. Missing packages are reported here too, for a trainer that
        was started without a plan."""
        config = run.config.stats_logger
        trackers = cls(warn, config.flush_timeout_s)
        missing = dict(missing_requirements(config, set(filter(is_installed, tracker_packages())), os.environ))
        for name in TRACKERS:
            if name in missing:
                warn(f"{missing[name].key}: {missing[name].message}; the run continues without it")
            elif is_enabled(name, config):
                trackers.add(name, partial(open_tracker, name, run))
        return trackers

    def add(self, name: str, make: Callable[[], Tracker]) -> None:
        """`make` opens the tracker, in its thread."""
        self._workers.append(TrackerThread(name, make, self._warn))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the values of a step; a step may come again after a recovery."""
        for worker in self._workers:
            worker.put(lambda tracker: tracker.log(step, values))

    def log_extras(self, extras: Extras) -> None:
        """Sends the samples and distributions of a step."""
        for worker in self._workers:
            worker.put(lambda tracker: tracker.log_extras(extras))

    def rewind(self, step: int) -> None:
        """The next values follow after `step` completed steps."""
        for worker in self._workers:
            worker.put(lambda tracker: tracker.rewind(step))

    def close(self) -> None:
        """Sends remaining values; gives up after the timeout."""
        for worker in self._workers:
            worker.end()
        end = time.monotonic() + self._limit_s
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
            if worker.is_alive():
                worker.abandon(f"has not sent everything {self._limit_s:g} s after the run (flush_timeout_s)")
        self._workers.clear()
