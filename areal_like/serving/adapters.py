"""Loads and unloads adapters during generation: new groups use the newest, running groups keep theirs."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

import xxhash

from areal_like.process.errors import TimedOut
from areal_like.process.pulse import WorkPulse
from areal_like.process.wait import NamedWait
from areal_like.serving.engines.base import REQUEST_TIMEOUT, EngineGone, InferenceEngine
from areal_like.serving.pauser import Pauser
from areal_like.serving.probe_check import ProbeCheck
from areal_like.serving.served_weights import ServedWeights
from areal_like.weights.adapter import LoadedAdapter, check_adapter, read_adapter
from areal_like.weights.probe import Probe
from areal_like.weights.verify import checkpoint_tensors

MAX_LOADED = 2
"""Engines are started with room for two: the newest adapter and the one before it."""
PAUSE_S = 0.05
SHARE_OF_LIMIT = 0.9
"""Ends before the controller's own timeout, so that the controller gets the reason."""

log = logging.getLogger(__name__)


def adapter_name(adapter: LoadedAdapter) -> str:
    """Contains a hash of the contents: a later attempt may publish other weights as the same version, and engines cache
    prompts by the adapter's name."""
    digest = xxhash.xxh3_64(json.dumps(adapter.files.config, sort_keys=True).encode())
    for info in sorted(adapter.files.infos):
        digest.update(f"{info.name} {info.hash}\n".encode())
    return f"v{adapter.version}-{digest.hexdigest()}"


class Adapters:
    """Each adapter is loaded once, under its own name, and never changed."""

    def __init__(
        self,
        engine: InferenceEngine,
        pauser: Pauser,
        served: ServedWeights,
        model_folder: Path,
        limit_s: float,
        probe_check: ProbeCheck,
        work: WorkPulse,
    ) -> None:
        """`limit_s`: the controller's timeout of an update."""
        self._engine, self._pauser, self._served, self._model_folder = engine, pauser, served, model_folder
        self._limit_s, self._probe_check = limit_s * SHARE_OF_LIMIT, probe_check
        self._unloading: asyncio.Task[None] | None = None
        self._work = work

    async def load(
        self,
        folder: Path,
        version: int,
        run_id: str | None,
        probe: Probe | None,
        is_wanted: Callable[[], bool],
    ) -> tuple[LoadedAdapter, list[float]]:
        """Checks the files, loads them, computes the probe, and only then lets new groups use the adapter. Also returns
        the probe's log-probabilities. After a fault the old adapter stays in use."""
        newer_than = self._served.reported_version
        with self._work.running():
            adapter = await asyncio.to_thread(self._checked, folder, version, newer_than, run_id)
        name = adapter_name(adapter)
        await self._make_room(name, version, is_wanted)
        with self._work.running():
            await self._engine.load_adapter(name, folder)
        try:
            logprobs: list[float] = []
            if (probe := probe or adapter.probe) is not None:
                async with self._pauser.resumed():
                    logprobs = await self._engine.logprobs(probe.token_ids, name)
                self._probe_check.check(probe, logprobs, adapter.files.infos)
            if not is_wanted():
                raise ValueError(f"version {version}: the run went back to a checkpoint while it was loaded")
        except Exception:
            with contextlib.suppress(EngineGone, ValueError):
                await self._engine.unload_adapter(name)
            raise
        self._served.add_adapter(name, version)
        await self.unload_unused()
        return adapter, logprobs

    async def _make_room(self, name: str, version: int, is_wanted: Callable[[], bool]) -> None:
        """Waits until the last group on an older adapter has ended; paused groups end only after they are resumed."""
        what = f"groups on older adapters to end before version {version} is loaded"
        waiting = NamedWait(what, self._limit_s, REQUEST_TIMEOUT)
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
        adapter = read_adapter(folder, newer_than, run_id, version)
        check_adapter(adapter, checkpoint_tensors(self._model_folder))
        return adapter

    def start_unloading(self) -> None:
        """Called when a group has released an adapter."""
        if self._served.unused() and (self._unloading is None or self._unloading.done()):
            self._unloading = asyncio.create_task(self._unload_later())

    async def unload_unused(self) -> None:
        for name in list(self._served.unused()):
            self._served.remove_adapter(name)
            await self._engine.unload_adapter(name)
            log.info("adapter %s is unloaded: no group uses it", name)

    async def _unload_later(self) -> None:
        try:
            await self.unload_unused()
        except (EngineGone, ValueError) as fault:
            log.warning("an adapter could not be unloaded: %s", fault)
