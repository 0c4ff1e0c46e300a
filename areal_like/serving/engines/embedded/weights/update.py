"""Weight and adapter updates: loaded and checked during generation, then swapped between two steps."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.process.errors import NOT_STAGED, DamagedWeights, HttpError
from areal_like.serving.control_protocol import ADAPTER, AUTO, KEEP, UpdateRequest
from areal_like.serving.engines.base import PauseCancelled
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.engine_thread import AsyncLLMEngine
from areal_like.serving.engines.embedded.weights.adapters import adapter_hashes
from areal_like.serving.engines.embedded.weights.batched_lora import ServedAdapter
from areal_like.weights.adapter import read_adapter, read_peft_folder
from areal_like.weights.disk import LoadedWeights, load_version, with_dtype_names
from areal_like.weights.errors import BadWeights
from areal_like.weights.fingerprint import compare, dtype_name, tensor_hash
from areal_like.weights.probe import Probe, check_probe
from areal_like.weights.receive import receive_tensors
from areal_like.weights.verify import verify_index
from areal_like.weights.versions import NO_VERSION

UPDATE_PAUSE = "update"
"""Pause owner: a weight update."""
ADAPTER_NAME = re.compile(r"[\w.-][\w./-]*")
VERSION_NAME = re.compile(r"v\d+")


class TimedSwap(NamedTuple):
    """`tokens` and `busy_s`: since the swap before."""

    stall_s: float
    probe_logprobs: list[float]
    tokens: int
    busy_s: float


class StagedWeights(NamedTuple):
    """`is_current`: whether the run still wants them."""

    weights: LoadedWeights
    load_s: float
    is_current: Callable[[], bool]


class PreparedAdapter(NamedTuple):
    """In the model's precision, and the hashes that its tensors must have there."""

    adapter: ServedAdapter
    version: int
    expected: dict[str, str]
    probe: Probe | None


class EmbeddedWeightUpdater:
    """One update at a time. Every fault is a ValueError that says what is wrong; the old weights then stay. If the
    loaded weights are damaged, DamagedWeights ends the server. `run_id`: of the run whose weights are accepted; None:
    any."""

    def __init__(self, async_engine: AsyncLLMEngine, run_id: str | None) -> None:
        self._async_engine, self._run_id = async_engine, run_id
        self._engine: LLMEngine = async_engine.thread.engine
        self._lock = asyncio.Lock()
        self._tokens, self._busy_s = 0, 0.0
        self._staged: StagedWeights | None = None
        self._last_report: dict[str, Any] = {}
        self.has_run_weights = False
        """Whether the served weights are the run's, as of its current attempt."""

    def forget(self) -> None:
        """The run went back to a checkpoint: it must send weights again, and an older version may come."""
        self.has_run_weights = False
        self._async_engine.thread.post(self._engine.clear_adapter)

    async def update(self, request: UpdateRequest, is_current: Callable[[], bool]) -> dict[str, Any]:
        """Stages and commits. `is_current` is checked again before the swap: the caller may be outdated by then."""
        if request.transport == ADAPTER:
            return await self._update_adapter(request, is_current)
        await self.stage(request, is_current)
        return await self.commit(request.version, request.probe, request.mode)

    async def stage(self, request: UpdateRequest, is_current: Callable[[], bool]) -> None:
        """Loads new weights into the standby buffer during generation. Raises GroupBroken if the transfer failed."""
        async with self._lock:
            self._staged = None
            began = time.perf_counter()
            weights = await asyncio.to_thread(self._load, request)
            self._staged = StagedWeights(weights, time.perf_counter() - began, is_current)

    async def commit(self, version: int, probe: Probe | None, mode: str) -> dict[str, Any]:
        """Serves the staged weights. `mode`: what happens to running requests."""
        async with self._lock:
            if self._last_report.get("version") == version == self._engine.version and self.has_run_weights:
                return self._last_report  # only the response was lost
            if self._staged is None or self._staged.weights.version != version:
                raise HttpError(NOT_STAGED, f"version {version} of the weights was not staged here, or is no longer")
            weights, load_s, is_current = self._staged
            if not is_current():
                raise ValueError(f"version {version}: the run went back to a checkpoint while it was loaded")
            async with self._paused(mode):
                result = await self._async_engine.call(lambda: self._swap(weights, probe or weights.probe))
            self._staged = None
            self.has_run_weights = is_current()
            self._last_report = self._report(version, len(weights.hashes), load_s, result)
            return self._last_report

    @contextlib.asynccontextmanager
    async def _paused(self, mode: str) -> AsyncIterator[None]:
        """A swap happens between two steps anyway, so `keep` needs no pause."""
        thread = self._async_engine.thread
        if mode in (AUTO, KEEP) or thread.is_paused:
            yield
            return
        try:
            await asyncio.wrap_future(thread.pause(mode, UPDATE_PAUSE))
            yield
        except PauseCancelled as cancelled:
            raise ValueError(f"weights: {cancelled}") from cancelled
        finally:
            thread.resume(UPDATE_PAUSE)

    async def _update_adapter(self, request: UpdateRequest, is_current: Callable[[], bool]) -> dict[str, Any]:
        """For a version that is an adapter: the model's own weights stay."""
        assert request.folder is not None, "checked when the request was parsed"
        version, folder = request.version, request.folder
        async with self._lock:
            began = time.perf_counter()
            prepared = await asyncio.to_thread(
                prepare_adapter, self._engine, version, folder, self._newer_than, self._run_id
            )
            load_s = time.perf_counter() - began
            if not is_current():
                raise ValueError(f"version {version}: the run went back to a checkpoint while it was loaded")
            result = await self._async_engine.call(
                lambda: self._timed(lambda: serve_adapter(self._engine, prepared, request.probe))
            )
            self.has_run_weights = is_current()
        return self._report(version, len(prepared.expected), load_s, result)

    def _report(self, version: int, num_tensors: int, load_s: float, result: TimedSwap) -> dict[str, Any]:
        return {
            "version": version,
            "stall_s": result.stall_s,
            "load_s": load_s,
            "probe_logprobs": result.probe_logprobs,
            "dtype": dtype_name(self._engine.dtype),
            "tensors": num_tensors,
            "generated": {"tokens": result.tokens, "busy_s": result.busy_s},
            "read_back": {"covered": num_tensors, "uncovered": []},
        }

    @property
    def _newer_than(self) -> int:
        return self._engine.version if self.has_run_weights else NO_VERSION

    def _load(self, request: UpdateRequest) -> LoadedWeights:
        """Into the standby buffer."""
        buffer = self._engine.weights
        if (index := request.index) is not None and (rendezvous := request.rendezvous) is not None:
            _check_version(index.version, request.version)
            verify_index(index, with_dtype_names(buffer.expected()), self._newer_than, self._run_id)
            buffer.fill(receive_tensors(rendezvous, rendezvous.first_rank, index))
            hashes = {info.name: info.hash for info in index.tensors}
            num_bytes = sum(info.nbytes for info in index.tensors)
            return LoadedWeights(index.version, index.run_id, {}, hashes, index.probe, num_bytes)
        assert request.folder is not None, "checked when the request was parsed"
        weights = load_version(request.folder, buffer.expected(), self._newer_than, self._run_id)
        _check_version(weights.version, request.version)
        buffer.stage(weights.tensors)
        return weights

    def _swap(self, weights: LoadedWeights, probe: Probe | None) -> TimedSwap:
        """In the engine's thread, between two steps."""
        return self._timed(lambda: self._engine.swap(weights.version, lambda: self._verify(weights, probe)))

    def _timed(self, swap: Callable[[], list[float] | None]) -> TimedSwap:
        began = time.perf_counter()
        probe_logprobs = swap() or []
        counts = self._engine.counts
        stall_s = time.perf_counter() - began
        result = TimedSwap(stall_s, probe_logprobs, counts.tokens - self._tokens, counts.busy_s - self._busy_s)
        self._tokens, self._busy_s = counts.tokens, counts.busy_s
        return result

    def _verify(self, weights: LoadedWeights, probe: Probe | None) -> list[float]:
        """Compares the served weights with the published hashes; returns the probe's log-probabilities."""
        _compare_loaded(weights.hashes, self.hashes(), weights.version)
        if probe is None:
            return []
        logprobs = self._engine.logprobs(probe.token_ids)
        check_probe(probe, logprobs, dtype_name(self._engine.dtype))
        return logprobs

    def hashes(self) -> dict[str, str]:
        """Of every served tensor of the model."""
        return {name: tensor_hash(tensor) for name, tensor in self._engine.weights.tensors()}

    def all_hashes(self) -> dict[str, str]:
        """Of every served tensor, those of the run's adapter included."""
        current = self._engine.adapters.current
        return self.hashes() | ({} if current is None else adapter_hashes(current))


def prepare_adapter(
    engine: LLMEngine, version: int, folder: Path, newer_than: int, run_id: str | None
) -> PreparedAdapter:
    """In any thread; raises BadWeights."""
    publication = read_adapter(folder, newer_than, run_id, version)
    subject = f"version {version} of the weights"
    adapter = engine.adapters.make(publication.files, f"v{version}", subject, version, str(folder))
    return PreparedAdapter(adapter, version, engine.adapters.expected_hashes(publication.files), publication.probe)


def serve_adapter(engine: LLMEngine, prepared: PreparedAdapter, probe: Probe | None) -> list[float]:
    """In the engine's thread: compares hashes, computes the probe, and only then serves the adapter to new groups.
    Returns the probe's log-probabilities."""
    _compare_loaded(prepared.expected, adapter_hashes(prepared.adapter), prepared.version)
    logprobs: list[float] = []
    if (probe := probe or prepared.probe) is not None:
        logprobs = engine.logprobs(probe.token_ids, prepared.adapter)
        check_probe(probe, logprobs, dtype_name(engine.dtype))
    engine.serve_adapter(prepared.adapter, prepared.version)
    return logprobs


class NamedAdapters:
    """Adapters that clients load by name, for completions that ask for them. `model` is the name of the bare model."""

    def __init__(self, async_engine: AsyncLLMEngine, model: str) -> None:
        self._async_engine, self._model = async_engine, model
        self._adapters = async_engine.thread.engine.adapters

    async def load(self, name: str, folder: Path) -> dict[str, Any]:
        """Raises BadWeights if the folder has no adapter, or none for this model."""
        if not ADAPTER_NAME.fullmatch(name) or name == self._model:
            raise BadWeights(f"name: {name!r} cannot name an adapter; use only letters, digits and . _ - /")
        if VERSION_NAME.fullmatch(name):
            raise BadWeights(f"name: {name} is the name of a version of the run's weights; take another")
        files = await asyncio.to_thread(read_peft_folder, folder)
        adapter = await asyncio.to_thread(self._adapters.make, files, name, f"adapter {name}", None, str(folder))
        await self._async_engine.call(lambda: self._adapters.add(adapter))
        return {"name": name, "tensors": len(files.infos)}

    async def unload(self, name: str) -> dict[str, Any]:
        """Raises BadRequest if there is none; running groups keep it to their end."""
        await self._async_engine.call(lambda: self._adapters.remove(name))
        return {"name": name}


def _compare_loaded(published: dict[str, str], loaded: dict[str, str], version: int) -> None:
    """What was read had the right hashes, so a difference comes from this process."""
    try:
        compare(published, loaded, version)
    except BadWeights as damage:
        raise DamagedWeights(version, str(damage)) from damage


def _check_version(received: int, expected: int) -> None:
    if received != expected:
        raise ValueError(f"version {received} of the weights came, and not {expected}")
