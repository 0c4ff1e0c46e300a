"""Limits of all calls to an engine: a call beyond its limit raises an error that names the limit."""

import asyncio
import contextlib
import math
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from areal_like.process.errors import Failure
from areal_like.serving.engines.base import (
    CALL_TIMEOUT,
    REQUEST_TIMEOUT,
    ClientAccess,
    EngineGone,
    GenerateOutput,
    GenerateRequest,
    InferenceEngine,
    SwapResult,
    Usage,
    Verification,
    WeightUpdate,
)
from areal_like.serving.requests import StepSlot
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.probe import Probe

T = TypeVar("T")


class CallLimit(NamedTuple):
    seconds: float
    name: str


class CallTimedOut(EngineGone):
    pass


class LimitedEngine(InferenceEngine):
    """The engine with limits: `request_timeout_s` for what generates, loads or waits for requests, `call_timeout_s` for
    the others."""

    def __init__(self, engine: InferenceEngine, call_timeout_s: float, request_timeout_s: float = math.inf) -> None:
        self.engine, self.info = engine, engine.info
        self.native_pauses, self.max_in_flight = engine.native_pauses, engine.max_in_flight
        self.commits_while_generating, self.picks_adapter = engine.commits_while_generating, engine.picks_adapter
        self.hashes_files, self.has_pulse = engine.hashes_files, engine.has_pulse
        self._long = CallLimit(request_timeout_s, REQUEST_TIMEOUT)
        self._quick = CallLimit(call_timeout_s, CALL_TIMEOUT)

    async def generate(self, request: GenerateRequest) -> list[GenerateOutput]:
        try:
            return await self._within("a request", self.engine.generate(request), self._long)
        except CallTimedOut:
            with contextlib.suppress(EngineGone, ValueError):
                await self.abort([request.id])
            raise

    async def leave(self, place: StepSlot) -> None:
        await self._within("an empty place", self.engine.leave(place))

    async def abort(self, ids: Sequence[str] | None) -> None:
        await self._within("an abort", self.engine.abort(ids))

    async def pause(self, mode: str) -> int | None:
        return await self._within("a pause", self.engine.pause(mode), self._long)

    async def resume(self) -> None:
        await self._within("the end of a pause", self.engine.resume())

    async def stage(self, update: WeightUpdate) -> None:
        await self._within("new weights", self.engine.stage(update), self._long)

    async def commit(self, update: WeightUpdate, probe: Probe | None = None) -> SwapResult | None:
        return await self._within("the swap of its weights", self.engine.commit(update, probe), self._long)

    async def discard(self) -> None:
        await self._within("the removal of staged weights", self.engine.discard())

    async def name_version(self, version: int) -> None:
        await self._within("the version of its weights", self.engine.name_version(version))

    async def forget(self) -> None:
        await self._within("the end of an attempt", self.engine.forget())

    async def verify(self, infos: Sequence[TensorInfo], folder: Path | None) -> Verification:
        return await self._within("the hashes of its weights", self.engine.verify(infos, folder), self._long)

    async def logprobs(self, token_ids: Sequence[int], adapter: str | None = None) -> list[float]:
        return await self._within("log-probabilities", self.engine.logprobs(token_ids, adapter), self._long)

    async def loaded_adapters(self) -> list[str]:
        return await self._within("the list of its adapters", self.engine.loaded_adapters())

    async def load_adapter(self, name: str, folder: Path) -> None:
        await self._within("a new adapter", self.engine.load_adapter(name, folder), self._long)

    async def unload_adapter(self, name: str) -> None:
        await self._within("the removal of an adapter", self.engine.unload_adapter(name))

    async def statistics(self) -> dict[str, Any]:
        return await self._within("its statistics", self.engine.statistics())

    @property
    def usage(self) -> Usage | None:
        return self.engine.usage

    def client_routes(self, access: ClientAccess) -> Sequence[Any]:
        return self.engine.client_routes(access)

    async def gone(self) -> Failure:
        return await self.engine.gone()

    async def close(self) -> None:
        await self.engine.close()

    async def _within(self, what: str, call: Coroutine[Any, Any, T], limit: CallLimit | None = None) -> T:
        limit = limit or self._quick
        scope = asyncio.timeout(limit.seconds if math.isfinite(limit.seconds) else None)
        try:
            async with scope:
                return await call
        except TimeoutError as late:
            if not scope.expired():
                raise
            raise CallTimedOut(
                f"{self.info.engine} did not finish {what} within {limit.seconds:g} s ({limit.name})"
            ) from late
