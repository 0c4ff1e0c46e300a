"""Adapters come and go beside generation: new groups take the newest, others end on theirs."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

import xxhash

from areal_like.process.errors import TimedOut
from areal_like.process.wait import NamedWait
from areal_like.serving.external.base import EngineGone, InferenceEngine
from areal_like.serving.external.pauser import Pauser
from areal_like.serving.external.served_weights import ServedWeights
from areal_like.weights.adapter import LoadedAdapter, check_adapter, read_adapter
from areal_like.weights.probe import Probe, check_probe
from areal_like.weights.verify import checkpoint_tensors

MAX_LOADED = 2
"""What engines of others are started with room for: the newest, and the one before it."""
PAUSE_S = 0.05
LIMIT_KEY = "rollout.request_timeout"
SHARE_OF_LIMIT = 0.9
"""So that the controller, which waits for as long, still hears why there is no room."""

log = logging.getLogger(__name__)


def adapter_name(found: LoadedAdapter) -> str:
    """Also by what it holds: a later attempt may publish another one as the same version, and engines remember what
    they computed of prompts by the adapter's name."""
    digest = xxhash.xxh3_64(json.dumps(found.files.config, sort_keys=True).encode())
    for info in sorted(found.files.infos):
        digest.update(f"{info.name} {info.hash}\n".encode())
    return f"v{found.version}-{digest.hexdigest()}"


class Adapters:
    """Each is loaded once, under the name of its version, and never changed."""

    def __init__(
        self,
        engine: InferenceEngine,
        pauser: Pauser,
        served: ServedWeights,
        model_folder: Path,
        dtype: str,
        limit_s: float,
    ) -> None:
        """`dtype`: the precision that the engine computes in. `limit_s`: how long an update is waited for."""
        self._engine, self._pauser, self._served, self._model_folder = engine, pauser, served, model_folder
        self._dtype, self._limit_s = dtype, limit_s * SHARE_OF_LIMIT
        self._unloading: asyncio.Task[None] | None = None

    async def load(
        self,
        folder: Path,
        version: int,
        run_id: str | None,
        probe: Probe | None,
        is_wanted: Callable[[], bool],
    ) -> tuple[LoadedAdapter, list[float]]:
        """Checked on disk, loaded, tried with the probe, and only then taken by new groups. Also returns what the
        probe gave. Until it is taken nothing has happened, so that every fault leaves what was in use."""
        newer_than = self._served.reported_version
        found = await asyncio.to_thread(self._checked, folder, version, newer_than, run_id)
        name = adapter_name(found)
        await self._make_room(name, version, is_wanted)
        await self._engine.load_adapter(name, folder)
        try:
            logprobs: list[float] = []
            if (asked := probe or found.probe) is not None:
                async with self._pauser.resumed():  # somebody may have paused it
                    logprobs = await self._engine.logprobs(asked.token_ids, name)
                check_probe(asked, logprobs, self._dtype)
            if not is_wanted():
                raise ValueError(f"version {version}: the run went back to a checkpoint while it was loaded")
        except Exception:
            with contextlib.suppress(EngineGone, ValueError):
                await self._engine.unload_adapter(name)
            raise
        self._served.add_adapter(name, version)
        await self.unload_unused()
        return found, logprobs

    async def _make_room(self, name: str, version: int, is_wanted: Callable[[], bool]) -> None:
        """Until the last group on an older one, or of an older attempt, has ended. Where groups are paused that is not
        before they go on."""
        what = f"groups on older adapters to end before version {version} is loaded"
        waiting = NamedWait(what, self._limit_s, LIMIT_KEY)
        await self.unload_unused()
        while self._served.num_adapters >= MAX_LOADED or self._served.has(name):
            if not is_wanted():
                raise ValueError(f"version {version}: the run went back to a checkpoint while it waited for room")
            try:
                waiting.check()
            except TimedOut as late:
                raise ValueError(str(late)) from late
            await asyncio.sleep(PAUSE_S)
            await self.unload_unused()

    def _checked(self, folder: Path, version: int, newer_than: int, run_id: str | None) -> LoadedAdapter:
        found = read_adapter(folder, newer_than, run_id, version)
        check_adapter(found, checkpoint_tensors(self._model_folder))
        return found

    def look(self) -> None:
        """Somebody has given one back."""
        if self._served.unused() and (self._unloading is None or self._unloading.done()):
            self._unloading = asyncio.create_task(self._unload_later())

    async def unload_unused(self) -> None:
        for name in list(self._served.unused()):
            self._served.remove_adapter(name)
            await self._engine.unload_adapter(name)
            log.info("adapter %s is unloaded: nobody uses it any more", name)

    async def _unload_later(self) -> None:
        try:
            await self.unload_unused()
        except (EngineGone, ValueError) as fault:
            log.warning("an adapter could not be unloaded: %s", fault)
