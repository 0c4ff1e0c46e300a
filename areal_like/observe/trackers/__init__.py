"""Trackers: where metrics go besides the run directory. Which ones a run has is said by `stats_logger`."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

from areal_like.observe.trackers.base import Tracker
from areal_like.observe.trackers.worker import Worker
from areal_like.process.run import Run

NAMES = ("tensorboard", "wandb", "swanlab")
CLOSE_S = 60.0
"""How long the end of a run waits for trackers to send what they have."""


def is_wanted(name: str, run: Run) -> bool:
    """Whether the configuration wants a tracker."""
    config = run.config.stats_logger
    if name == "tensorboard":
        return config.tensorboard.path is not None
    return getattr(config, name).mode not in (None, "disabled")


def open_tracker(name: str, run: Run) -> Tracker:
    """A tracker by name."""
    if name == "tensorboard":
        from areal_like.observe.trackers.tensorboard import TensorBoard

        return TensorBoard(run)
    if name == "wandb":
        from areal_like.observe.trackers.wandb import WandB

        return WandB(run)
    if name == "swanlab":
        from areal_like.observe.trackers.swanlab import SwanLab

        return SwanLab(run)
    raise ValueError(f"{name}: no such tracker; there are {', '.join(NAMES)}")


class Trackers:
    """All trackers of a run, each in a thread of its own: a service that is slow or away holds nobody up. One that
    fails says so once, and the run goes on without it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._workers: list[Worker] = []

    @classmethod
    def of(cls, run: Run, say: Callable[[str], None]) -> Self:
        """Those that the run's configuration wants."""
        trackers = cls(say)
        for name in NAMES:
            if is_wanted(name, run):
                trackers.add(name, partial(open_tracker, name, run))
        return trackers

    def add(self, name: str, make: Callable[[], Tracker]) -> None:
        """`make` opens one, in its thread."""
        self._workers.append(Worker(name, make, self._say))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the values of a step; a step may come again after a recovery."""
        for worker in self._workers:
            worker.put(lambda tracker: tracker.log(step, values))

    def rewind(self, step: int) -> None:
        """What comes next follows after `step` completed steps."""
        for worker in self._workers:
            worker.put(lambda tracker: tracker.rewind(step))

    def close(self, limit_s: float = CLOSE_S) -> None:
        """Sends what is left; gives up after the limit."""
        for worker in self._workers:
            worker.put(None)
        end = time.monotonic() + limit_s
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
            if worker.is_alive():
                self._say(
                    f"stats_logger.{worker.name}: has not sent everything within {limit_s:g} s, and is left alone"
                )
        self._workers.clear()
