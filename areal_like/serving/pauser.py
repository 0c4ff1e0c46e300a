"""Pauses and resumes generation for several owners; no request is lost."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from areal_like.serving.control_protocol import ABORT, AUTO, KEEP, WAIT
from areal_like.serving.engines.base import CALL_TIMEOUT, EngineGone, InferenceEngine
from areal_like.serving.request_queue import RequestQueue

ABORT_RETRY_S = 0.05
"""The abort is repeated: a request may have been on its way to the engine."""


class Pauser:
    """`keep` freezes requests in the engine; `wait` lets them finish; `abort` takes back their tokens so far, to
    continue from them later. Several owners can pause at once, each under its name. The engine ends aborted requests
    within `call_timeout_s`."""

    def __init__(self, engine: InferenceEngine, queue: RequestQueue, call_timeout_s: float) -> None:
        self.num_aborts = 0
        """How often all running requests were aborted."""
        self._engine, self._queue, self._call_timeout_s = engine, queue, call_timeout_s
        self._native = engine.native_pauses
        self._modes: dict[str, str] = {}
        self._is_frozen = False
        """Whether the engine confirmed its last pause with `keep`."""
        self._must_resume = False
        """Whether the engine was paused natively and not resumed since."""
        self._lock = asyncio.Lock()

    def mode(self, owner: str) -> str | None:
        return self._modes.get(owner)

    @property
    def is_paused(self) -> bool:
        """Also while a pause waits for running requests."""
        return bool(self._modes)

    @property
    def is_frozen(self) -> bool:
        """Whether requests stay in the engine without being continued. Before other pauses it has to end them."""
        return self._is_frozen

    def resolve_mode(self, mode: str) -> str:
        """Replaces `auto`; raises ValueError for a mode that the engine does not support."""
        if mode == AUTO:
            return KEEP if KEEP in self._native else ABORT
        if mode == KEEP and KEEP not in self._native:
            raise ValueError(
                "mode: this engine cannot keep requests while it is paused, as it does not report the weight version "
                f"of each token; use {ABORT} or {WAIT}"
            )
        return mode

    async def pause(self, owner: str, mode: str) -> int:
        """Returns when nothing is generated, with the number of unfinished requests. Raises PauseCancelled if a native
        pause is resumed before; another returns early."""
        async with self._lock:
            if mode == WAIT and KEEP in self._modes.values():
                raise ValueError("mode: requests are frozen by a pause with keep and would never end; resume first")
            if mode not in self._native or self._engine.max_in_flight is not None:
                self._queue.hold(owner)
            unfinished = None
            try:
                if mode == KEEP and not self._is_frozen:
                    unfinished = await self._freeze()
            except BaseException:
                if owner not in self._modes:
                    self._queue.release(owner)
                raise
            self._modes[owner] = mode
            self._must_resume |= mode in self._native
        if mode != KEEP and mode in self._native:
            unfinished = await self._engine.pause(mode)
        elif mode != KEEP:
            await self._drain(owner, mode)
            async with self._lock:
                await self._thaw()
        return self._queue.running if unfinished is None else unfinished

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

    async def _freeze(self) -> int | None:
        unfinished = await self._engine.pause(KEEP)
        self._is_frozen = True
        return unfinished

    async def _thaw(self) -> None:
        """Unless an owner has a native pause. If the engine does not answer, the next resume tries again."""
        if self._must_resume and not self._native.intersection(self._modes.values()):
            await self._engine.resume()
            self._is_frozen = self._must_resume = False

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
                if time.monotonic() - began > self._call_timeout_s:
                    left = self._queue.running
                    await self.resume(owner)
                    raise EngineGone(
                        f"the engine did not end {left} aborted requests within "
                        f"{self._call_timeout_s:g} s ({CALL_TIMEOUT})"
                    ) from None
                await self._engine.abort(None)
