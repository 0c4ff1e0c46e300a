"""The embedded engine as a server drives it: it runs in a thread of the server's process."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from areal_like import __version__
from areal_like.process.errors import Failure
from areal_like.serving.control_protocol import ABORT, KEEP, WAIT
from areal_like.serving.engines.base import (
    ClientAccess,
    EngineInfo,
    GenerateOutput,
    GenerateRequest,
    InferenceEngine,
    SwapResult,
    Usage,
    Verification,
    WeightUpdate,
)
from areal_like.serving.engines.embedded.async_engine import AsyncLLMEngine
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.openai_api.openai_serving import OpenAIServing
from areal_like.serving.engines.embedded.openai_api.routes import openai_routes
from areal_like.serving.engines.embedded.weights.update import WeightSwapper
from areal_like.serving.requests import StepSlot
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.disk import with_dtype_names
from areal_like.weights.fingerprint import dtype_name
from areal_like.weights.gpu_ids import gpu_ids
from areal_like.weights.probe import Probe


class EmbeddedEngine(InferenceEngine):
    """Must be made in the event loop that serves it. It swaps and verifies weights in one turn of its thread, and takes
    a swap back that fails. `seed`: for clients that send none."""

    native_pauses = frozenset((KEEP, WAIT, ABORT))
    max_in_flight = None
    commits_while_generating = True
    picks_adapter = True
    has_pulse = True
    hashes_files = True

    def __init__(self, engine: LLMEngine, model: str, seed: int) -> None:
        self.async_engine, self._engine, self._seed = AsyncLLMEngine(engine), engine, seed
        self._thread = self.async_engine.thread
        self._weights = WeightSwapper(self.async_engine)
        self.info = EngineInfo(
            engine=engine.keys.name,
            version=__version__,
            model=model,
            context_length=engine.context_length,
            vocab_size=engine.vocab_size,
            eos_token_ids=tuple(engine.eos_token_ids),
            devices=tuple(gpu_ids(engine.weights.device)),
            dtype=dtype_name(engine.dtype),
            length_key=engine.keys.length_key,
            tensors=with_dtype_names(engine.weights.expected()),
        )

    async def generate(self, request: GenerateRequest) -> list[GenerateOutput]:
        """It continues interrupted answers itself, so that every request is a whole group."""
        assert request.group is not None
        finished = await self.async_engine.generate(request.group)
        if finished.error is not None:
            raise ValueError(finished.error)
        return [
            GenerateOutput(sample.token_ids, sample.logprobs, sample.finish, sample.versions)
            for sample in finished.samples
        ]

    async def leave(self, place: StepSlot) -> None:
        await self.async_engine.call(lambda: self._engine.waiting.leave(place))

    async def abort(self, ids: Sequence[str] | None) -> None:
        """A request that is cancelled ends by itself, and a pause aborts none."""

    async def pause(self, mode: str) -> int:
        return await asyncio.wrap_future(self._thread.pause(mode))

    async def resume(self) -> None:
        self._thread.resume()

    async def stage(self, update: WeightUpdate) -> None:
        await self._weights.stage(update)

    async def commit(self, update: WeightUpdate, probe: Probe | None = None) -> SwapResult:
        return await self._weights.commit(update, probe)

    async def discard(self) -> None:
        self._weights.discard()

    async def name_version(self, version: int) -> None:
        await self.async_engine.call(lambda: self._engine.name_version(version))

    async def forget(self) -> None:
        """Stops serving the run's adapter."""
        self._thread.post(self._engine.clear_adapter)

    async def verify(self, infos: Sequence[TensorInfo], folder: Path | None) -> Verification:
        """All tensors, read again."""
        return Verification(await self._weights.all_hashes())

    async def logprobs(self, token_ids: Sequence[int], adapter: str | None = None) -> list[float]:
        served = self._engine.adapters.get(adapter) if adapter else None
        return await self.async_engine.call(lambda: self._engine.logprobs(token_ids, served))

    async def statistics(self) -> dict[str, Any]:
        return await self.async_engine.call(self._engine.statistics)

    @property
    def usage(self) -> Usage:
        return Usage(self._engine.counts.tokens, self._engine.counts.busy_s)

    def client_routes(self, access: ClientAccess) -> list[web.RouteDef]:
        self.openai = OpenAIServing(self.async_engine, access, self._seed)
        return openai_routes(self.openai, access)

    async def gone(self) -> Failure:
        return await asyncio.shield(self.async_engine.broken)
