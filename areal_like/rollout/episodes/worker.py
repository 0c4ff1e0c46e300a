"""Episodes worker: leases groups while it has free slots, runs them concurrently, and returns the results."""

import asyncio
import contextlib
import logging
from functools import partial
from typing import Any

from areal_like.process.frames import pack
from areal_like.rollout.episodes.controller_client import ControllerClient
from areal_like.rollout.episodes.generation_client import LeaseCancelled
from areal_like.rollout.episodes.runner import EpisodeResult, EpisodeRunner

BURST_DELAY_S = 0.002
"""Leases end in bursts: it waits this long for the rest of a burst before it requests new ones."""
REPORT_INTERVAL_S = 1.0
"""How often it asks the controller for cancelled leases while nothing finishes."""

log = logging.getLogger(__name__)


class EpisodeWorker:
    """Runs up to `max_in_flight` leases at a time."""

    def __init__(self, controller: ControllerClient, runner: EpisodeRunner, max_in_flight: int) -> None:
        self._controller, self._runner, self._max_in_flight = controller, runner, max_in_flight
        self._running: dict[str, asyncio.Task[None]] = {}
        self._results: list[EpisodeResult] = []
        self._sent: list[EpisodeResult] = []
        """Results that the controller has not acknowledged."""
        self._num_calls = 0
        self._slot_free, self._has_results = asyncio.Event(), asyncio.Event()
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work(self) -> None:
        """Works until the controller reports the end of the run."""
        tasks = [asyncio.create_task(self._lease()), asyncio.create_task(self._send_results())]
        try:
            done, _ = await asyncio.wait([*tasks, self._fault], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            tasks += self._running.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._fault.cancel()

    async def _lease(self) -> None:
        inspected: dict[str, list[Any]] = {}
        while True:
            if not inspected:  # what was inspected is sent at once: another worker may wait for it
                await self._wait_for_slot()
            want = self._max_in_flight - len(self._running)
            body = {"worker": self._controller.me.name, "want": want, "inspected": inspected}
            reply = await self._controller.post("/lease", partial(self._with_held, body))
            if reply.get("end"):
                return
            for lease in reply["leases"]:
                self._running[lease["id"]] = asyncio.create_task(self._run(lease))
            inspected = await self._runner.inspect(reply.get("inspect", {}))

    def _with_held(self, body: dict[str, Any]) -> dict[str, Any]:
        """A call, also one that is repeated, has a number and the leases that are held as it is sent: the controller
        finds those whose answer was lost."""
        self._num_calls += 1
        finished = [result.header["lease"] for result in (*self._results, *self._sent)]
        return {**body, "call": self._num_calls, "held": [*self._running, *finished]}

    async def _wait_for_slot(self) -> None:
        if self._running:
            await asyncio.sleep(BURST_DELAY_S)
        while len(self._running) >= self._max_in_flight:
            self._slot_free.clear()
            await self._slot_free.wait()
            await asyncio.sleep(BURST_DELAY_S)

    async def _run(self, lease: dict[str, Any]) -> None:
        try:
            result = await self._runner.run(lease)
            self._results.append(result)  # not a reference from before the await: the list may have been sent meanwhile
            self._has_results.set()
        except LeaseCancelled:
            pass
        except Exception as fault:
            if not self._fault.done():
                self._fault.set_exception(fault)
        finally:
            del self._running[lease["id"]]
            self._slot_free.set()

    async def _send_results(self) -> None:
        """Sends all results that finished during the previous call in one call."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_results.wait(), REPORT_INTERVAL_S)
            self._has_results.clear()
            if not self._results and not self._running:
                continue
            self._sent, self._results = self._results, []
            header = {
                "worker": self._controller.me.name,
                "results": [result.header for result in self._sent],
                "counts": self._runner.tools.counts(),
            }
            blobs = [result.blob for result in self._sent if result.blob is not None]
            reply = await self._controller.post("/finish", pack(header, blobs))
            self._sent = []
            for lease in reply.get("void", ()):
                if lease in self._running:
                    self._running[lease].cancel()
