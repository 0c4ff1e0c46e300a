"""How generation is brought to rest, and how it goes on. No request is lost by it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from areal_like.serving.control_protocol import ABORT, AUTO, KEEP, WAIT
from areal_like.serving.external.base import EngineGone, InferenceEngine
from areal_like.serving.external.request_queue import RequestQueue

ABORT_RETRY_S = 0.05
"""A request may be on its way to the engine when this is told to stop what it has."""
ABORT_TIMEOUT_S = 60.0
"""Until then an engine has given back what it was told to stop."""


class Pauser:
    """`keep` freezes requests where they are; `wait` lets them end; `abort` takes what there is of them back, to go on
    from it later. Several may want rest at once, each under a name of its own."""

    def __init__(self, engine: InferenceEngine, queue: RequestQueue) -> None:
        self.num_aborts = 0
        """How often all that ran was interrupted."""
        self._engine, self._queue = engine, queue
        self._modes: dict[str, str] = {}
        self._is_frozen = False
        """What the engine was told last, and has done."""
        self._one = asyncio.Lock()

    def mode(self, who: str) -> str | None:
        return self._modes.get(who)

    def settled(self, mode: str) -> str:
        """Which of the modes is meant; raises ValueError for one that the engine cannot do."""
        if mode == AUTO:
            return KEEP if self._engine.can_keep else ABORT
        if mode == KEEP and not self._engine.can_keep:
            raise ValueError(
                "mode: this engine cannot keep requests while it is paused, as it does not tell which weights made "
                f"which token; take {ABORT} or {WAIT}"
            )
        return mode

    async def begin(self, who: str, mode: str) -> None:
        """Returns when nothing is generated, or `who` wants no rest any more."""
        async with self._one:
            if mode == WAIT and self._is_kept:
                raise ValueError("mode: what runs is frozen by a pause with keep, and would never end; resume it first")
            self._queue.close(who)
            try:
                if mode == KEEP and not self._is_frozen:
                    await self._freeze()
            except BaseException:
                if who not in self._modes:
                    self._queue.open(who)
                raise
            self._modes[who] = mode
        if mode != KEEP:
            await self._drain(who, mode)
            async with self._one:
                await self._thaw()

    async def end(self, who: str) -> None:
        """Goes on, unless somebody else wants rest."""
        async with self._one:
            self._modes.pop(who, None)
            await self._thaw()
            self._queue.open(who)

    @asynccontextmanager
    async def resumed(self) -> AsyncIterator[None]:
        """The engine can be asked something, though it may be frozen otherwise."""
        async with self._one:
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
        """Unless somebody wants it frozen. Where the engine does not answer, the next who ends a rest tries again."""
        if self._is_frozen and not self._is_kept:
            await self._engine.resume()
            self._is_frozen = False

    async def _drain(self, who: str, mode: str) -> None:
        if mode == ABORT:
            self.num_aborts += 1
            await self._engine.abort(None)
        began = time.monotonic()
        while self._queue.running and who in self._modes:
            try:
                await asyncio.wait_for(self._queue.drained(), ABORT_RETRY_S)
            except TimeoutError:
                if mode != ABORT:
                    continue
                if time.monotonic() - began > ABORT_TIMEOUT_S:
                    await self.end(who)
                    raise EngineGone(
                        f"the engine was told to stop {self._queue.running} requests, and has not done so within "
                        f"{ABORT_TIMEOUT_S:g} s"
                    ) from None
                await self._engine.abort(None)
