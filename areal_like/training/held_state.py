"""A step that outlasts the grace time of a stop is abandoned: the state before it, which is held in memory, becomes a
checkpoint.

It is held where no checkpoint has it, and a step may take so long, or a copy costs next to nothing.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from areal_like.process.errors import TimedOut
from areal_like.process.exit_codes import STOPPED_EARLY
from areal_like.process.run import Run
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.checkpoint_content import CheckpointContent
from areal_like.training.engine import TrainEngine
from areal_like.training.progress import TrainingProgress
from areal_like.training.rank_vote import RankVote
from areal_like.training.stop import StopRequest
from areal_like.training.world import World

WRITE_SHARE, MOST_WRITE_SHARE = 0.25, 0.5
"""Of the grace time, for the checkpoint: at least and at most."""
SLOWER = 2.0
"""A step may take so many times as long as the slowest so far."""
CHEAP = 0.02
"""Share of the time of the last step."""

log = logging.getLogger(__name__)


class HeldState:
    """From `begin` to `end` of each step. As a context: that of the training loop."""

    def __init__(
        self,
        run: Run,
        world: World,
        stop: StopRequest,
        checkpoints: CheckpointManager,
        engines: Mapping[str, TrainEngine],
        progress: TrainingProgress,
        parts: Callable[[int], Callable[[], Mapping[str, bytes]]],
        last_words: Callable[[int], None] = lambda step: None,
    ) -> None:
        """`parts` is called when a state is held, and what it returns when that is written: resume state of other
        components. `last_words` follow. All ranks must create one."""
        self._world, self._stop, self._checkpoints = world, stop, checkpoints
        self._engines, self._progress = engines, progress
        self._parts, self._last_words = parts, last_words
        self._grace_s: float = run.config.recover.grace_s
        trained = "actor" if hasattr(run.config, "actor") else "model"
        self._vote = RankVote(world, getattr(run.config, trained).dist_timeout_s, f"{trained}.dist_timeout_s")
        self._held: tuple[CheckpointContent, Callable[[], Mapping[str, bytes]]] | None = None
        self._is_deciding = False
        self._changed, self._is_over = threading.Condition(), threading.Event()
        self._slowest_s = self._last_s = self._began = 0.0
        self._copy_s: float | None = None

    def __enter__(self) -> "HeldState":
        threading.Thread(target=self._follow, name="grace time", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        """Not while the state is written: other ranks that have ended are no failure then."""
        self._is_over.set()
        self._release()

    def begin(self, step: int) -> None:
        """`step` steps are completed. All ranks must call it."""
        if self._world.first([self._is_wanted(step)])[0]:
            began = time.monotonic()
            due = self._checkpoints.last(step)
            content = self._checkpoints.content(step, due, self._engines, self._progress)
            self._held = content, self._parts(step) if due.to_resume else dict
            self._copy_s = time.monotonic() - began
        self._began = time.monotonic()

    def end(self) -> None:
        """The step counts, unless all ranks have abandoned it: then it does not return."""
        self._release()
        self._last_s = time.monotonic() - self._began
        self._slowest_s = max(self._slowest_s, self._last_s)

    def _is_wanted(self, step: int) -> bool:
        if not self._slowest_s or not self._checkpoints.last(step) or self._checkpoints.is_writing:
            return False  # before the first step of an attempt the state is the one that it began with
        is_cheap = self._copy_s is None or self._copy_s < CHEAP * self._last_s
        return is_cheap or SLOWER * self._slowest_s > self._time_for_step()

    def _time_for_step(self) -> float:
        write_s = max(WRITE_SHARE * self._grace_s, SLOWER * self._checkpoints.slowest_write_s)
        return self._grace_s - min(write_s, MOST_WRITE_SHARE * self._grace_s)

    def _release(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_deciding)
            self._held = None

    def _follow(self) -> None:
        self._stop.arrived.wait()
        if self._is_over.wait(self._time_for_step()):
            return
        with self._changed:
            held = self._held
            self._is_deciding = held is not None
        try:
            if self._all_hold(held is not None) and held is not None:
                self._abandon(*held)
        except Exception:
            log.exception("the state before the step could not be written")
        with self._changed:
            self._is_deciding = False
            self._changed.notify_all()

    def _all_hold(self, holds: bool) -> bool:
        try:
            return not self._vote.sum(int(not holds), "whether it holds the state before the step")
        except TimedOut as fault:
            log.warning("%s", fault)
            return False

    def _abandon(self, content: CheckpointContent, parts: Callable[[], Mapping[str, bytes]]) -> None:
        """All ranks do: none goes on with the step."""
        step = content.step
        log.warning("recover.grace_s: step %d takes too long; it is abandoned, with the checkpoint before it", step + 1)
        self._checkpoints.write_content(content, self._progress, parts())
        self._checkpoints.wait_for_all()
        self._last_words(step)
        leave()


def leave() -> None:
    """Whatever the main thread does."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(STOPPED_EARLY)
