"""Calls of our code in the workers of vLLM or SGLang, which loads new weights there."""

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable
from typing import Any, Protocol

from areal_like.serving.engines.base import EngineGone, NotStaged, WeightUpdate
from areal_like.serving.engines.external.plugin.background_job import BUSY, FAILED, GROUP_BROKEN, REFUSED
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.index import dump_index

MIN_POLL_S, MAX_POLL_S = 0.002, 0.02
SHARE_UNPOLLED = 0.8
"""Share of the time of the last weights in which it is not polled whether new ones are staged: polls take time from
generation."""

Result = dict[str, Any]

log = logging.getLogger(__name__)


class WorkerCall(Protocol):
    def __call__(self, method: str, *arguments: str) -> Awaitable[list[Result]]:
        """Calls a method in every worker."""


class EngineWorkers:
    """`title`: the engine's name for messages; `memory_key`: what a server takes of its GPU."""

    def __init__(self, title: str, call: WorkerCall, memory_key: str = "") -> None:
        self._title, self._call, self._memory_key = title, call, memory_key
        self._has_warned = False
        """Whether the log has why new weights are in main memory."""
        self._peers: dict[int, list[int]] = {}
        """The rank of each worker, and those of all workers on its machine."""
        self._staging_s = 0.0
        """Seconds in which the workers staged the last weights."""
        self._verified: list[int] = []
        """Ranks of the workers that verified their share of the staged files."""
        self.num_workers = 1
        self._group = ""
        """Of the workers that pass on their shares of files; a new one after a failure."""

    async def read_places(self) -> tuple[str, ...]:
        """Asks where the workers are. The GPU of each, by rank; nothing if one of them has none."""
        workers = sorted(await self._call("areal_place"), key=lambda worker: worker["rank"])
        self.num_workers = len(workers)
        machines: dict[str, list[int]] = {}
        for worker in workers:
            ranks = machines.setdefault(worker["machine"], [])
            ranks.append(worker["rank"])
            self._peers[worker["rank"]] = ranks
        devices = [device for worker in workers for device in worker["devices"]]
        return tuple(devices) if len(devices) == len(workers) else ()

    async def stage(self, update: WeightUpdate, limit_s: float = 0.0) -> list[Result]:
        """Returns when all have verified what they were given, with their results. `limit_s`: for each wait of one for
        another."""
        self._verified, self._group = [], self._group or f"files.{secrets.token_hex(16)}"
        message = {
            "index": dump_index(update.index),
            "folder": None if update.folder is None else str(update.folder),
            "meeting": None if update.rendezvous is None else update.rendezvous._asdict(),
            "peers": self._peers,
            "workers": self.num_workers,
            "group": self._group,
            "limit_s": limit_s,
        }
        await self._call("areal_stage", json.dumps(message))
        await asyncio.sleep(SHARE_UNPOLLED * self._staging_s)
        results = await self.results("areal_staged")
        self._staging_s = max(result.get("seconds", 0.0) for result in results)
        self._verified = [result["rank"] for result in results if "rank" in result]
        self._warn_of_main_memory(results)
        return results

    def _warn_of_main_memory(self, results: list[Result]) -> None:
        """Once: it is so for every version."""
        lacks = next((f"worker {each['rank']}: {each['lacks']}" for each in results if each.get("lacks")), "")
        if lacks and not self._has_warned:
            self._has_warned = True
            why = f"new weights go through main memory, which takes longer ({lacks})"
            log.warning("%s: %s; lower it, or set it to auto, to keep them on the GPU", self._memory_key, why)

    async def commit(self, version: int) -> None:
        """Makes the staged weights live. A worker refuses them unless all with which it shares them verified their
        part."""
        verified = [json.dumps(self._verified)] if self.num_workers > 1 else []
        self._check_meeting(await self._call("areal_commit", str(version), *verified))

    async def meet(self) -> None:
        """Of an engine that itself has its workers apply the weights: to be called before."""
        if self.num_workers > 1:
            self._check_meeting(await self._call("areal_meet"))

    def _check_meeting(self, results: list[Result]) -> None:
        """Raises NotStaged if not all workers came to pass on their shares: then the old weights are in use."""
        try:
            for result in results:
                self._check(result)
        except GroupBroken as broken:
            raise NotStaged(str(broken)) from broken

    async def discard(self) -> None:
        self._verified = []
        await self._call("areal_discard")

    async def results(self, method: str, max_pause_s: float = MAX_POLL_S) -> list[Result]:
        """Polls until the work that was started before is done in all workers."""
        pause_s = MIN_POLL_S
        while True:
            results = await self._call(method)
            if not any(result.get(BUSY) for result in results):
                for result in sorted(results, key=lambda result: REFUSED not in result):  # others fail in consequence
                    self._check(result)
                return results
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, max_pause_s)

    def _check(self, result: Result) -> None:
        if REFUSED in result:
            raise BadWeights(result[REFUSED])
        if GROUP_BROKEN in result:
            self._group = ""
            raise GroupBroken(result[GROUP_BROKEN])
        if FAILED in result:
            raise EngineGone(f"a worker of {self._title} failed: {result[FAILED]}")
