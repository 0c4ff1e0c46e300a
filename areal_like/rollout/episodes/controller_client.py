"""A worker's client for the controller: looks it up by name and waits for it if it does not answer."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from areal_like.discovery.base import Entry
from areal_like.process.errors import HttpError, Unreachable
from areal_like.process.http import HttpClient
from areal_like.process.identity import Identity
from areal_like.process.patience import PATIENCE_KEY
from areal_like.process.wait import NamedWait
from areal_like.rollout.episodes.generation_client import SUPERSEDED_STATUSES, LeaseCancelled, Superseded

RETRY_DELAY_S = 0.5
ANSWER_TIMEOUT_S = 60.0
"""Far above the time of the controller's long polls."""

log = logging.getLogger(__name__)

Find = Callable[[NamedWait], Entry]
"""Looks up the controller, and waits until it is registered."""


class ControllerClient:
    """Calls of the controller; one that is not answered is repeated for `limit_s` seconds."""

    def __init__(self, http: HttpClient, me: Identity, find: Find, limit_s: float) -> None:
        self.me = me
        self._http, self._find, self._limit_s = http, find, limit_s
        self._address: str | None = None

    async def post(self, path: str, body: dict[str, Any] | bytes | Callable[[], dict[str, Any]]) -> Any:
        """`body` is JSON data, the bytes of a frame, or a function that returns the data of each call."""
        waiting: NamedWait | None = None
        while True:
            try:
                address = await self._look_up()
                sent = body() if callable(body) else body
                reply = await self._http.json("POST", address, path, sent, timeout_s=ANSWER_TIMEOUT_S)
                if waiting is not None:
                    waiting.over()
                return reply
            except Unreachable as fault:
                log.warning("the controller does not answer: %s", fault)
                self._address = None
                waiting = waiting or NamedWait("the controller to answer again", self._limit_s, PATIENCE_KEY)
                waiting.check()
                await asyncio.sleep(RETRY_DELAY_S)
            except HttpError as refusal:
                if refusal.status in SUPERSEDED_STATUSES:
                    raise Superseded(f"the controller refuses this process: {refusal.message}") from None
                raise

    async def another_server(self, lease: str, failed_address: str) -> str:
        """The address of another server for a lease. Raises LeaseCancelled if its result is no longer needed."""
        waiting = NamedWait(f"a server in place of {failed_address}", self._limit_s, PATIENCE_KEY)
        while True:
            reply = await self.post("/another_server", {"worker": self.me.name, "lease": lease, "gone": failed_address})
            if reply.get("void"):
                raise LeaseCancelled(lease)
            if "server" in reply:
                return str(reply["server"])
            waiting.check()

    async def _look_up(self) -> str:
        if self._address is None:
            entry = await asyncio.to_thread(self._find, NamedWait("the controller", self._limit_s, PATIENCE_KEY))
            if entry.attempt > self.me.attempt:
                message = (
                    f"the run is at attempt {entry.attempt}, and this process belongs to attempt {self.me.attempt}"
                )
                raise Superseded(f"{message}; it has been replaced")
            self._address = entry.address
        return self._address
