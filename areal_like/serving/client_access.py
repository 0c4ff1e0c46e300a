"""What the routes of an engine for clients outside of the run may use of the server."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from areal_like.process.errors import HttpError
from areal_like.process.identity import CallGuard
from areal_like.serving.engines.base import ClientAccess
from areal_like.serving.pauser import Pauser
from areal_like.serving.request_queue import RequestQueue
from areal_like.serving.requests import CLIENT_PRIORITY
from areal_like.serving.served_weights import ServedWeights


class ServerAccess(ClientAccess):
    def __init__(
        self,
        model: str,
        request_timeout_s: float,
        guard: CallGuard,
        queue: RequestQueue,
        pauser: Pauser,
        served: ServedWeights,
        statistics: Callable[[], Awaitable[dict[str, Any]]],
    ) -> None:
        self.model, self.request_timeout_s = model, request_timeout_s
        self._guard, self._queue, self._pauser, self._served = guard, queue, pauser, served
        self._statistics = statistics
        self._numbers = itertools.count(1 << 40)

    @property
    def is_used_by_run(self) -> bool:
        return self._queue.is_used_by_run

    @property
    def is_paused(self) -> bool:
        return self._pauser.is_paused

    @property
    def num_aborts(self) -> int:
        return self._pauser.num_aborts

    def knows(self, headers: Mapping[str, str]) -> bool:
        return self._guard.knows(headers)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        async with self._queue.slot(CLIENT_PRIORITY, next(self._numbers)):
            if self._served.fault is not None:
                raise HttpError(503, f"this server is broken: {self._served.fault}")
            yield

    async def statistics(self) -> dict[str, Any]:
        return await self._statistics()
