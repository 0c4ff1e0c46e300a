"""Pauses and resumes generation for several owners; no request is lost."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from areal_like.serving.control_protocol import ABORT, AUTO, KEEP, WAIT
from areal_like.serving.engines.base import EngineGone, InferenceEngine
from areal_like.serving.request_queue import RequestQueue

ABORT_RETRY_S = 0.05
"""The abort is repeated: a request may have been on its way to the engine."""
ABORT_TIMEOUT_S = 60.0
"""Time for an engine to end aborted requests."""


class Pauser:
    """`keep` freezes requests in the engine; `wait` lets them finish; `abort` takes back their tokens so far, to
    continue from them later. Several owners can pause at once, each under its name."""

    def __init__(self, engine: InferenceEngine, queue: RequestQueue) -> None:
        self.num_aborts = 0
        """How often all running requests were aborted."""
        self._engine, self._queue = engine, queue
        self._modes: dict[str, str] = {}
        self._is_frozen = False
        """Whether the engine confirmed its last pause."""
        self._lock = asyncio.Lock()

    def mode(self, owner: str) -> str | None:
        return self._modes.get(owner)

    def resolve_mode(self, mode: str) -> str:
        """Replaces `auto`; raises ValueError for a mode that the engine does not support."""
        if mode == AUTO:
            return KEEP if self._engine.can_keep else ABORT
        if mode == KEEP and not self._engine.can_keep:
            raise ValueError(
                "mode: this engine cannot keep requests while it is paused, as it does not report the weight version "
                f"of each token; use {ABORT} or {WAIT}"
            )
        return mode

    async def pause(self, owner: str, mode: str) -> None:
        """Returns when nothing is generated, or `owner` has resumed."""
        async with self._lock:
            if mode == WAIT and self._is_kept:
                raise ValueError("mode: requests are frozen by a pause with keep and would never end; resume first")
            self._queue.hold(owner)
            try:
                if mode == KEEP and not self._is_frozen:
                    await self._freeze()
            except BaseException:
                if owner not in self._modes:
                    self._queue.release(owner)
                raise
            self._modes[owner] = mode
        if mode != KEEP:
            await self._drain(owner, mode)
            async with self._lock:
                await self._thaw()

    async def resume(self, owner: str) -> None:
        """Generation continues when no other owner pauses it."""
        async with self._lock:
            self._modes.pop(owner, None)
            await self._thaw()
            self._queue.release(owner)

    @asynccontextmanager
    async def resumed(self) -> AsyncIterator[None]:
        """Resumes a frozen engine for the calls inside the block."""
        async with self._lock:
            frozen = self._is_frozen
            if frozen:
                await self._engine.resume()
                self._is_frozen = False
            try:
                yield
            finally:
                if frozen:
                    await self._freeze()

    @property
    def _is_kept(self) -> bool:
        return KEEP in self._modes.values()

    async def _freeze(self) -> None:
        await self._engine.pause()
        self._is_frozen = True

    async def _thaw(self) -> None:
        """Unless an owner keeps it frozen. If the engine does not answer, the next resume tries again."""
        if self._is_frozen and not self._is_kept:
            await self._engine.resume()
            self._is_frozen = False

    async def _drain(self, owner: str, mode: str) -> None:
        if mode == ABORT:
            self.num_aborts += 1
            await self._engine.abort(None)
        began = time.monotonic()
        while self._queue.running and owner in self._modes:
            try:
                await asyncio.wait_for(self._queue.drained(), ABORT_RETRY_S)
            except TimeoutError:
                if mode != ABORT:
                    continue
                if time.monotonic() - began > ABORT_TIMEOUT_S:
                    await self.resume(owner)
                    raise EngineGone(
                        f"the engine did not end {self._queue.running} aborted requests within {ABORT_TIMEOUT_S:g} s"
                    ) from None
                await self._engine.abort(None)
