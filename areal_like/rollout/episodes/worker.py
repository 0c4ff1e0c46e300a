"""An episodes worker: leases work as long as it has hands free, runs it side by side, hands in what is finished."""

import asyncio
import contextlib
import logging
from typing import Any

from areal_like.process.frames import pack
from areal_like.rollout.episodes.controller_client import ControllerClient
from areal_like.rollout.episodes.generation_client import LeaseCancelled
from areal_like.rollout.episodes.runner import EpisodeResult, EpisodeRunner

BURST_DELAY_S = 0.002
"""Leases end in bursts; so little is waited for the rest of one before others are asked for."""
REPORT_INTERVAL_S = 1.0
"""Where nothing finishes, the controller is still asked so often which leases have become void."""

log = logging.getLogger(__name__)


class EpisodeWorker:
    """Up to `num_hands` leases at once."""

    def __init__(self, controller: ControllerClient, episodes: EpisodeRunner, max_in_flight: int) -> None:
        self._controller, self._runner, self._max_in_flight = controller, episodes, max_in_flight
        self._running: dict[str, asyncio.Task[None]] = {}
        self._results: list[EpisodeResult] = []
        self._hand_free, self._something_finished = asyncio.Event(), asyncio.Event()
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work(self) -> None:
        """Until the controller says that the run is over."""
        tasks = [asyncio.create_task(self._take()), asyncio.create_task(self._hand_in())]
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

    async def _take(self) -> None:
        while True:
            await self._free_hand()
            want = self._max_in_flight - len(self._running)
            said = await self._controller.json("/lease", {"worker": self._controller.me.name, "want": want})
            if said.get("end"):
                return
            for lease in said["leases"]:
                self._running[lease["id"]] = asyncio.create_task(self._run(lease))

    async def _free_hand(self) -> None:
        if self._running:
            await asyncio.sleep(BURST_DELAY_S)
        while len(self._running) >= self._max_in_flight:
            self._hand_free.clear()
            await self._hand_free.wait()
            await asyncio.sleep(BURST_DELAY_S)

    async def _run(self, lease: dict[str, Any]) -> None:
        try:
            result = await self._runner.run(lease)
            self._results.append(result)  # looked up only now: the list was handed in meanwhile
            self._something_finished.set()
        except LeaseCancelled:
            pass
        except Exception as fault:
            if not self._fault.done():
                self._fault.set_exception(fault)
        finally:
            del self._running[lease["id"]]
            self._hand_free.set()

    async def _hand_in(self) -> None:
        """All that finished while the last results were on their way goes with one call."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._something_finished.wait(), REPORT_INTERVAL_S)
            self._something_finished.clear()
            if not self._results and not self._running:
                continue
            results, self._results = self._results, []
            counts = vars(self._runner.tools.rewards.counts)
            header = {
                "worker": self._controller.me.name,
                "results": [result.said for result in results],
                "counts": counts,
            }
            blobs = [result.blob for result in results if result.blob is not None]
            said = await self._controller.json("/finish", pack(header, blobs))
            for lease in said.get("void", ()):
                if lease in self._running:
                    self._running[lease].cancel()
