"""The worker's way to the controller: found by name, waited for where it does not answer, obeyed where it refuses."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from areal_like.discovery.base import Entry
from areal_like.process.errors import HttpError, Unreachable
from areal_like.process.http import HttpClient
from areal_like.process.identity import Identity
from areal_like.process.wait import NamedWait
from areal_like.rollout.episodes.generation_client import SUPERSEDED_STATUSES, LeaseCancelled, Superseded

TIMEOUT_KEY = "rollout.setup_timeout"
RETRY_DELAY_S = 0.5
ANSWER_TIMEOUT_S = 60.0
"""Far above the seconds that the controller holds a call back for."""

log = logging.getLogger(__name__)

Find = Callable[[NamedWait], Entry]
"""Looks the controller up, waiting for it to be there."""


class ControllerClient:
    """Calls to the controller that outlast its silence, for `limit_s` seconds."""

    def __init__(self, caller: HttpClient, me: Identity, find: Find, limit_s: float) -> None:
        self.me = me
        self._caller, self._find, self._limit_s = caller, find, limit_s
        self._address: str | None = None

    async def json(self, path: str, body: dict[str, Any] | bytes) -> Any:
        """`body` is sent as JSON, or as it is where it is a frame."""
        waiting: NamedWait | None = None
        while True:
            try:
                return await self._caller.json("POST", await self._look_up(), path, body, timeout_s=ANSWER_TIMEOUT_S)
            except Unreachable as fault:
                log.warning("the controller does not answer: %s", fault)
                self._address = None
                waiting = waiting or NamedWait("the controller to answer again", self._limit_s, TIMEOUT_KEY)
                waiting.check()
                await asyncio.sleep(RETRY_DELAY_S)
            except HttpError as refusal:
                if refusal.status in SUPERSEDED_STATUSES:
                    raise Superseded(f"the controller refuses this process: {refusal.message}") from None
                raise

    async def another_server(self, lease: str, gone: str) -> str:
        """The server that a lease goes on with; Void where nobody wants the lease any more."""
        waiting = NamedWait(f"a server in place of {gone}", self._limit_s, TIMEOUT_KEY)
        while True:
            said = await self.json("/another_server", {"worker": self.me.name, "lease": lease, "gone": gone})
            if said.get("void"):
                raise LeaseCancelled(lease)
            if "server" in said:
                return str(said["server"])
            waiting.check()

    async def _look_up(self) -> str:
        if self._address is None:
            entry = await asyncio.to_thread(self._find, NamedWait("the controller", self._limit_s, TIMEOUT_KEY))
            if entry.attempt > self.me.attempt:
                said = f"the run is at attempt {entry.attempt}, this process is of attempt {self.me.attempt}"
                raise Superseded(f"{said}; it has been replaced")
            self._address = entry.address
        return self._address
