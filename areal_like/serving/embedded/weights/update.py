"""New weights for a server: loaded beside generation, checked before and after they are swapped in."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from areal_like.process.errors import NOT_STAGED, HttpError
from areal_like.serving.control_protocol import ADAPTER, AUTO, KEEP, UpdateRequest
from areal_like.serving.embedded.async_engine import AsyncLLMEngine
from areal_like.serving.embedded.core.llm_engine import LLMEngine
from areal_like.serving.embedded.engine_thread import PauseCancelled
from areal_like.serving.embedded.weights.adapter_update import prepare_adapter, serve_adapter
from areal_like.serving.embedded.weights.adapters import adapter_hashes
from areal_like.weights.disk import LoadedWeights, load_version, with_dtype_names
from areal_like.weights.fingerprint import compare, dtype_name, tensor_hash
from areal_like.weights.probe import Probe, check_probe
from areal_like.weights.receive import receive_tensors
from areal_like.weights.verify import verify_index
from areal_like.weights.versions import NO_VERSION

UPDATE_PAUSE = "update"
"""Whose pause it is."""


class SwapResult(NamedTuple):
    """What the moment of the swap took and showed. `tokens` and `busy_s`: since the one before."""

    stall_s: float
    probe_logprobs: list[float]
    tokens: int
    busy_s: float


class StagedWeights(NamedTuple):
    """Weights that are beside those in use. `load_s` is how long it took to bring them."""

    publication: LoadedWeights
    load_s: float
    is_wanted: Callable[[], bool]


class EmbeddedWeightUpdater:
    """One update at a time. Every fault is a ValueError that says what is wrong, and leaves the old weights in use.
    `run_id` is that of the run whose weights are taken (None: of any)."""

    def __init__(self, streams: AsyncLLMEngine, run_id: str | None) -> None:
        self._streams, self._run_id = streams, run_id
        self._engine: LLMEngine = streams.driver.engine
        self._one = asyncio.Lock()
        self._tokens, self._busy_s = 0, 0.0
        self._staged: StagedWeights | None = None
        self._done: dict[str, Any] = {}
        """What was last answered of weights in use."""
        self.is_told = False
        """Whether the weights in use are those of the run as it is now."""

    def forget(self) -> None:
        """The run went back to a checkpoint: what is in use is none of its weights, and an older version may come."""
        self.is_told = False
        self._streams.driver.post(self._engine.forget_adapter)

    async def update(self, order: UpdateRequest, is_wanted: Callable[[], bool]) -> dict[str, Any]:
        """All of it at once. `is_wanted` is asked again before the weights are taken into use: who ordered it may be of
        the past by then."""
        if order.transport == ADAPTER:
            return await self._adapt(order, is_wanted)
        await self.stage(order, is_wanted)
        return await self.commit(order.version, order.probe, order.mode)

    async def stage(self, order: UpdateRequest, is_wanted: Callable[[], bool]) -> None:
        """Brings new weights beside those in use, while these go on generating. Raises GroupBroken where they did not
        come through."""
        async with self._one:
            self._staged = None
            began = time.perf_counter()
            publication = await asyncio.to_thread(self._bring, order)
            self._staged = StagedWeights(publication, time.perf_counter() - began, is_wanted)

    async def commit(self, version: int, probe: Probe | None, mode: str) -> dict[str, Any]:
        """Takes what was staged into use. Requests under way are treated as `mode` says."""
        async with self._one:
            if self._done.get("version") == version == self._engine.version and self.is_told:
                return self._done  # only the answer was lost
            if self._staged is None or self._staged.publication.version != version:
                raise HttpError(NOT_STAGED, f"version {version} of the weights was not staged here, or is not any more")
            publication, load_s, is_wanted = self._staged
            if not is_wanted():
                raise ValueError(f"version {version}: the run went back to a checkpoint while it was loaded")
            async with self._standing_still(mode):
                swapped = await self._streams.call(lambda: self._swap(publication, probe or publication.probe))
            self._staged = None
            self.is_told = is_wanted()
            self._done = self._said(version, len(publication.hashes), load_s, swapped)
            return self._done

    @contextlib.asynccontextmanager
    async def _standing_still(self, mode: str) -> AsyncIterator[None]:
        """A swap happens between two steps anyway, so that what runs can stay where it is."""
        driver = self._streams.driver
        if mode in (AUTO, KEEP) or driver.is_paused:
            yield
            return
        try:
            await asyncio.wrap_future(driver.pause(mode, UPDATE_PAUSE))
            yield
        except PauseCancelled as resumed:
            raise ValueError(f"weights: {resumed}") from resumed
        finally:
            driver.resume(UPDATE_PAUSE)

    async def _adapt(self, order: UpdateRequest, is_wanted: Callable[[], bool]) -> dict[str, Any]:
        """The same for a version that is an adapter: the model's own weights stay as they are."""
        assert order.folder is not None, "seen to when the order was read"
        version, folder = order.version, order.folder
        async with self._one:
            began = time.perf_counter()
            newer_than = self._engine.version if self.is_told else NO_VERSION
            prepared = await asyncio.to_thread(prepare_adapter, self._engine, version, folder, newer_than, self._run_id)
            load_s = time.perf_counter() - began
            if not is_wanted():
                raise ValueError(f"version {version}: the run went back to a checkpoint while it was loaded")
            swapped = await self._streams.call(
                lambda: self._timed(lambda: serve_adapter(self._engine, prepared, order.probe))
            )
            self.is_told = is_wanted()
        return self._said(version, len(prepared.expected), load_s, swapped)

    def _said(self, version: int, num_tensors: int, load_s: float, swapped: SwapResult) -> dict[str, Any]:
        return {
            "version": version,
            "stall_s": swapped.stall_s,
            "load_s": load_s,
            "probe_logprobs": swapped.probe_logprobs,
            "dtype": dtype_name(self._engine.dtype),
            "tensors": num_tensors,
            "generated": {"tokens": swapped.tokens, "busy_s": swapped.busy_s},
            "read_back": {"covered": num_tensors, "uncovered": []},
        }

    def _bring(self, order: UpdateRequest) -> LoadedWeights:
        """Into the standby set."""
        newer_than = self._engine.version if self.is_told else NO_VERSION
        weights = self._engine.weights
        if (index := order.index) is not None and (meeting := order.meeting) is not None:
            _check_version(index.version, order.version)
            verify_index(index, with_dtype_names(weights.expected()), newer_than, self._run_id)
            weights.fill(receive_tensors(meeting, meeting.first_rank, index))
            hashes = {info.name: info.hash for info in index.tensors}
            num_bytes = sum(info.nbytes for info in index.tensors)
            publication = LoadedWeights(index.version, index.run_id, {}, hashes, index.probe, num_bytes)
        else:
            assert order.folder is not None, "seen to when the order was read"
            publication = load_version(order.folder, weights.expected(), newer_than, self._run_id)
            _check_version(publication.version, order.version)
            weights.stage(publication.tensors)
        return publication

    def _swap(self, publication: LoadedWeights, probe: Probe | None) -> SwapResult:
        """In the engine's thread, between two steps."""
        return self._timed(lambda: self._engine.swap(publication.version, lambda: self._check(publication, probe)))

    def _timed(self, swap: Callable[[], list[float] | None]) -> SwapResult:
        began = time.perf_counter()
        found = swap()
        counts = self._engine.counts
        swapped = SwapResult(
            time.perf_counter() - began, found or [], counts.tokens - self._tokens, counts.busy_s - self._busy_s
        )
        self._tokens, self._busy_s = counts.tokens, counts.busy_s
        return swapped

    def _check(self, publication: LoadedWeights, probe: Probe | None) -> list[float]:
        """Reads back what is in use, and computes with it."""
        compare(publication.hashes, self.hashes(), publication.version)
        if probe is None:
            return []
        found = self._engine.logprobs(probe.token_ids)
        check_probe(probe, found, dtype_name(self._engine.dtype))
        return found

    def hashes(self) -> dict[str, str]:
        """Of every tensor of the model that is in use."""
        return {name: tensor_hash(tensor) for name, tensor in self._engine.weights.tensors()}

    def all_hashes(self) -> dict[str, str]:
        """The same, and those of the adapter that the run serves."""
        current = self._engine.adapters.current
        return self.hashes() | ({} if current is None else adapter_hashes(current))


def _check_version(came: int, wanted: int) -> None:
    if came != wanted:
        raise ValueError(f"version {came} of the weights came, and not {wanted}")
