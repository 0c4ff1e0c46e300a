"""The trainer's side of the ring: it asks the controller for batches, and tells it of new weights and of steps that are
done."""

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
from areal_like.process.identity import Identity, token
from areal_like.process.run import Run
from areal_like.process.wait import NamedWait
from areal_like.training.batch import TrainingBatch, read_batch

CONTROLLER = "rollout/0"
RETRY_PAUSE_S = 0.1
FACTS_PAUSE_S = 0.05

log = logging.getLogger(__name__)


class StepLimits(NamedTuple):
    """What the controller knows of the run."""

    total_steps: int
    steps_per_epoch: int


class NoMoreBatches(NamedTuple):
    """There is no further batch, and why."""

    reason: str


class TrainerControllerClient:
    """The controller, as seen from one rank of `world_size`."""

    def __init__(self, run: Run, me: Identity, rank: int, world_size: int) -> None:
        self._config, self._me = run.config.rollout, me
        self._rank, self._world_size = rank, world_size
        self._caller = BlockingHttpClient(me, token())
        self._address = self._find(run)

    def facts(self) -> StepLimits:
        """As soon as the controller has them: it learns the number of rows from who reads them."""
        waiting = NamedWait(
            "the number of steps from " + CONTROLLER, self._config.setup_timeout, "rollout.setup_timeout"
        )
        while not (said := self._json("GET", "/facts"))["ready"]:
            waiting.check()
            time.sleep(FACTS_PAUSE_S)
        return StepLimits(said["total_steps"], said["steps_per_epoch"])

    def publish(self, said: dict[str, Any]) -> None:
        """What a transport says of a version. Returns at once: the servers load it beside the next step."""
        self._json("POST", "/publish", said)

    def caller_for_thread(self) -> Callable[[str, dict[str, object]], dict[str, object]]:
        """For another thread of the trainer, which waits for nobody: it raises Unreachable."""
        local, secret, me, address = threading.local(), token(), self._me, self._address

        def ask(path: str, body: dict[str, object]) -> dict[str, object]:
            if not hasattr(local, "caller"):
                local.caller = BlockingHttpClient(me, secret)
            found: dict[str, object] = local.caller.json("POST", address, path, body)
            return found

        return ask

    def batch(self, step: int) -> TrainingBatch | NoMoreBatches:
        """This rank's part of batch `step`."""
        what, limit_s = f"batch {step} from {CONTROLLER}", self._config.request_timeout
        waiting, rows_left = NamedWait(what, limit_s, "rollout.request_timeout"), 0
        body = {"step": step, "rank": self._rank, "world": self._world_size}
        while True:
            header, blobs = self._frame("/batch", body)
            if "stop" in header:
                return NoMoreBatches(header["stop"])
            if not header.get("wait"):
                return read_batch(header, blobs)
            if header.get("evaluating", 0) != rows_left:
                # An evaluation comes before the batch; as long as it goes on, the limit begins anew.
                waiting, rows_left = NamedWait(what, limit_s, "rollout.request_timeout"), header["evaluating"]
            waiting.check()

    def done(self, step: int) -> None:
        self._json("POST", "/done", {"step": step})

    def state(self, step: int) -> bytes:
        """The controller's part of the checkpoint after so many steps, to be kept as it is."""
        return pack(*self._frame("/state", {"step": step}))

    def finished(self, step: int, early: bool) -> None:
        """The trainer's last word."""
        self._json("POST", "/finished", {"step": step, "early": early})

    def close(self) -> None:
        self._caller.close()

    def _find(self, run: Run) -> str:
        """The controller of this attempt; one that an earlier attempt left behind is none."""
        waiting = NamedWait(f"the address of {CONTROLLER}", self._config.setup_timeout, "rollout.setup_timeout")
        with open_name_store(run, self._me) as names:
            while (entry := parse_entry(names.wait(CONTROLLER, waiting))).attempt < self._me.attempt:
                waiting.check()
                time.sleep(RETRY_PAUSE_S)
        return entry.address

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        return self._patiently(lambda: self._caller.json(method, self._address, path, body))

    def _frame(self, path: str, body: Any) -> Frame:
        frame: Frame = self._patiently(lambda: self._caller.frame("POST", self._address, path, body))
        return frame

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """A controller that is gone is the launcher's business, which ends this process or all; dying of it as well
        would only hide why it went."""
        waiting = NamedWait(f"an answer of {CONTROLLER}", self._config.setup_timeout, "rollout.setup_timeout")
        while True:
            try:
                return call()
            except Unreachable as nobody:
                log.debug("%s", nobody)
                waiting.check()
                time.sleep(RETRY_PAUSE_S)
