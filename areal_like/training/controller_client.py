"""The trainer's client of the controller: requests batches, announces new weights and completed steps."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from areal_like.discovery import open_name_store
from areal_like.discovery.base import parse_entry
from areal_like.process.blocking_http import BlockingHttpClient
from areal_like.process.errors import Unreachable
from areal_like.process.frames import Frame, pack
from areal_like.process.identity import CONTROLLER as CONTROLLER_ROLE
from areal_like.process.identity import EPISODES, SERVER, Identity, token
from areal_like.process.patience import PATIENCE_KEY, WaitLimit, answer_limit, patience_s
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait
from areal_like.training.batch import TrainingBatch, read_batch

CONTROLLER = "rollout/0"
RETRY_PAUSE_S = 0.1
LIMITS_PAUSE_S = 0.05

log = logging.getLogger(__name__)


class StepLimits(NamedTuple):
    """The controller's numbers of steps. They shrink when more rows are found too long than fit into a batch."""

    total_steps: int
    steps_per_epoch: int


class NoMoreBatches(NamedTuple):
    """No further batch will come, and why."""

    reason: str


class TrainerControllerClient:
    """Of one rank of `world_size`."""

    def __init__(self, run: Run, me: Identity, rank: int, world_size: int) -> None:
        self._me = me
        self._batch_limit = answer_limit(run.config, SERVER, CONTROLLER_ROLE, EPISODES)
        """For any progress on the way to a batch."""
        self._patience_s = patience_s(run.config, CONTROLLER_ROLE, EPISODES)
        self._pin_memory: bool = run.config.train_dataset.pin_memory
        self._rank, self._world_size = rank, world_size
        self._callers: dict[int, BlockingHttpClient] = {}
        """By thread."""
        self._address = self._find(run)
        self.limits = StepLimits(0, 0)
        """As of the newest batch: the same on all ranks."""

    def step_limits(self) -> StepLimits:
        """Waits for the controller to know them: workers report the number of rows."""
        waiting = NamedWait(f"the number of steps from {CONTROLLER}", self._patience_s, PATIENCE_KEY)
        while not (answer := self._json("GET", "/facts"))["ready"]:
            waiting.check()
            time.sleep(LIMITS_PAUSE_S)
        self.limits = StepLimits(answer["total_steps"], answer["steps_per_epoch"])
        return self.limits

    def data_tokens(self) -> list[int]:
        """The first tokens of the training rows, the same for all ranks; empty if they have none. To be called after
        `step_limits`."""
        tokens: list[int] = self._json("GET", "/facts")["probe_tokens"]
        return tokens

    def publish(self, publication: dict[str, Any]) -> list[int]:
        """Announces a version with a transport's description, from any thread. Returns at once: servers load it during
        the next step. Returns the versions that evaluations still wait for."""
        awaited: list[int] = self._json("POST", "/publish", publication)["awaited"]
        return awaited

    def ask_once(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """From any thread. Does not retry: raises Unreachable."""
        answer: dict[str, object] = self._caller.json("POST", self._address, path, body)
        return answer

    def batch(self, step: int, while_waiting: Callable[[], None] = lambda: None) -> TrainingBatch | NoMoreBatches:
        """This rank's part of batch `step`. `while_waiting` is called again and again, and may raise."""
        waiting, progress = self._waiting(step, self._batch_limit), -1
        body = {"step": step, "rank": self._rank, "world": self._world_size}
        while True:
            header, blobs = self._frame("/batch", body)
            if "stop" in header:
                return NoMoreBatches(header["stop"])
            if not header.get("wait"):
                self.limits = StepLimits(header["total_steps"], header["steps_per_epoch"])
                return read_batch(header, blobs, self._pin_memory)
            if header["results"] != progress:
                # Each group that has ended, also one of an evaluation that comes before, restarts the timeout.
                limit = max(self._batch_limit, WaitLimit(*header["limit"]))
                waiting, progress = self._waiting(step, limit), header["results"]
            while_waiting()
            waiting.check()

    def _waiting(self, step: int, limit: WaitLimit) -> NamedWait:
        return NamedWait(f"batch {step} from {CONTROLLER}", limit.seconds, limit.key, CONTROLLER)

    def done(self, step: int) -> list[str]:
        """Names of the rows whose evaluation is due after this step; that of `valid_dataset` is empty."""
        names: list[str] = self._json("POST", "/done", {"step": step})["evaluates"]
        return names

    def state(self, step: int) -> bytes:
        """The controller's part of the checkpoint after `step` steps, stored as it is."""
        return pack(*self._frame("/state", {"step": step}))

    def finished(self, step: int, early: bool) -> None:
        """The trainer's last request."""
        self._json("POST", "/finished", {"step": step, "early": early})

    def close(self) -> None:
        for caller in list(self._callers.values()):
            caller.close()

    @property
    def _caller(self) -> BlockingHttpClient:
        """That of the current thread."""
        thread = threading.get_ident()
        if thread not in self._callers:
            self._callers[thread] = BlockingHttpClient(self._me, token())
        return self._callers[thread]

    def _find(self, run: Run) -> str:
        """The address of this attempt's controller; entries of earlier attempts are ignored."""
        waiting = NamedWait(f"the address of {CONTROLLER}", self._patience_s, PATIENCE_KEY)
        entries: dict[str, str] = {}
        with open_name_store(run, self._me) as names:
            while True:
                entries = names.watch(CONTROLLER, entries, waiting)
                if CONTROLLER in entries and (entry := parse_entry(entries[CONTROLLER])).attempt >= self._me.attempt:
                    return entry.address

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        return self._retry(lambda: self._caller.json(method, self._address, path, body))

    def _frame(self, path: str, body: Any) -> Frame:
        frame: Frame = self._retry(lambda: self._caller.frame("POST", self._address, path, body))
        return frame

    def _retry(self, call: Callable[[], Any]) -> Any:
        """Retries while the controller is unreachable: the launcher handles its death, and failing here as well would
        hide the cause."""
        waiting = NamedWait(f"an answer of {CONTROLLER}", self._patience_s, PATIENCE_KEY)
        while True:
            try:
                return call()
            except Unreachable as fault:
                log.debug("%s", fault)
                waiting.check()
                time.sleep(RETRY_PAUSE_S)
