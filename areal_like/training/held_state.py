"""A step that outlasts the grace time of a stop is abandoned: the state before it, which is held in memory, becomes a
checkpoint.

By itself it is held where no checkpoint has it, and a step may take so long, or a copy costs next to nothing.
"""

import logging
import os
import sys
import threading
import time
from collections import deque
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
LEAST_VOTE_S = 30.0
"""For ranks that stop at other times, or not at all."""
SLOWER = 2.0
"""A step may take so many times as long as the slowest of the last ones."""
LAST_STEPS = 10
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
        parts: Callable[[int], Mapping[str, bytes]],
        last_words: Callable[[int], None] = lambda step: None,
    ) -> None:
        """`parts` are resume state of other components, asked for when the state is written; `last_words` follow. All
        ranks must create one."""
        self._world, self._stop, self._checkpoints = world, stop, checkpoints
        self._engines, self._progress = engines, progress
        self._parts, self._last_words = parts, last_words
        self._grace_s: float = run.config.recover.grace_s
        self._hold_state: str = run.config.recover.hold_state
        self._vote = RankVote(world, max(LEAST_VOTE_S, WRITE_SHARE * self._grace_s), "recover.grace_s")
        self._held: CheckpointContent | None = None
        self._is_deciding = False
        self._changed, self._is_over = threading.Condition(), threading.Event()
        self._began: float | None = None
        self._times: deque[float] = deque(maxlen=LAST_STEPS)
        self._num_steps = self._num_copies = 0
        self._copy_s = 0.0
        self._step_limit_s = self._time_for_step()

    def __enter__(self) -> "HeldState":
        threading.Thread(target=self._follow, name="grace time", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        """Not while the state is written: other ranks that have ended are no failure then."""
        self._is_over.set()
        self._release()

    def begin(self, step: int) -> None:
        """`step` steps are completed. All ranks must call it."""
        # The first rank decides: it has most to write.
        is_wanted, self._step_limit_s = self._world.first([self._is_wanted(step), self._time_for_step()])
        if is_wanted:
            began = time.monotonic()
            due = self._checkpoints.last(step)
            self._held = self._checkpoints.content(step, due, self._engines, self._progress)
            self._num_copies += 1
            if self._num_copies > 1:  # memory for the first is locked, which takes longer than the copy
                self._copy_s = time.monotonic() - began
        self._began = time.monotonic()

    def measure(self) -> None:
        """The time of the step ends here, where something else than a step follows before `end`."""
        if self._began is None:
            return
        if self._num_steps == 1:
            self._times.clear()  # the first step compiles, and allocates
        self._times.append(time.monotonic() - self._began)
        self._num_steps, self._began = self._num_steps + 1, None

    def end(self) -> None:
        """The step counts, unless all ranks have abandoned it: then it does not return."""
        self._release()
        self.measure()

    def _is_wanted(self, step: int) -> bool:
        if self._hold_state == "never" or not self._times or not self._checkpoints.last(step):
            return False  # before the first step of an attempt the state is the one that it began with
        if self._hold_state == "always":
            return True
        if self._checkpoints.is_writing:
            return False  # it would have to wait
        return self._copy_s < CHEAP * self._times[-1] or SLOWER * max(self._times) > self._time_for_step()

    def _time_for_step(self) -> float:
        write_s = max(WRITE_SHARE * self._grace_s, SLOWER * self._checkpoints.slowest_write_s)
        return self._grace_s - min(write_s, MOST_WRITE_SHARE * self._grace_s)

    def _release(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_deciding)
            self._held = None

    def _follow(self) -> None:
        self._stop.arrived.wait()
        if self._is_over.wait(self._step_limit_s):
            return
        with self._changed:
            held = self._held
            self._is_deciding = held is not None
        try:
            if self._all_say(held is not None, "whether it holds the state before the step") and held is not None:
                self._abandon(held)
        except Exception:
            log.exception("the state before the step could not be written")
        with self._changed:
            self._is_deciding = False
            self._changed.notify_all()

    def _all_say(self, yes: bool, what: str) -> bool:
        try:
            return not self._vote.sum(int(not yes), what)
        except TimedOut as fault:
            log.warning("%s", fault)
            return False

    def _abandon(self, content: CheckpointContent) -> None:
        """All ranks do: none goes on with the step, unless the checkpoint could not be written."""
        step, fault = content.step, None
        log.warning("recover.grace_s: step %d takes too long; it is abandoned, with the checkpoint before it", step + 1)
        try:
            parts = self._parts(step) if content.due.to_resume else {}
            self._checkpoints.write_content(content, self._progress, parts)
            self._checkpoints.wait_for_all()
        except Exception as error:
            fault = error
        is_written = self._all_say(fault is None, "whether the checkpoint is written")
        if fault is not None:
            raise fault
        if is_written:
            try:
                self._last_words(step)
            except Exception:
                log.exception("the controller was not told that the step is abandoned")
            finally:
                leave()


def leave() -> None:
    """Whatever the main thread does."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(STOPPED_EARLY)
