"""Who may ask the engine now: so many at once, the most urgent first, and nobody while it is held."""

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from areal_like.serving.client_queue import RUN_ACTIVE_S
from areal_like.serving.external.base import MAX_IN_FLIGHT
from areal_like.serving.requests import CLIENT_PRIORITY


class RequestQueue:
    """`running` requests are in the engine, `waiting` ones before it."""

    def __init__(self, most: int = MAX_IN_FLIGHT) -> None:
        self.running = 0
        self._most = most
        self._holders: set[str] = set()
        self._queue: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._ties = itertools.count()
        self._empty = asyncio.Event()
        self._empty.set()
        self._busy_s, self._busy_since = 0.0, 0.0
        self._last_of_run = -math.inf

    @property
    def is_used_by_run(self) -> bool:
        """Whether one has asked for something lately."""
        return time.monotonic() - self._last_of_run < RUN_ACTIVE_S

    @property
    def waiting(self) -> int:
        return sum(not turn.done() for *_, turn in self._queue)

    @property
    def is_open(self) -> bool:
        return not self._holders

    @property
    def busy_s(self) -> float:
        """For how long in all something was running."""
        return self._busy_s + (time.monotonic() - self._busy_since if self.running else 0.0)

    @asynccontextmanager
    async def turn(self, priority: int, number: int) -> AsyncIterator[None]:
        """Smaller priorities go first, and among equal ones smaller numbers."""
        if priority < CLIENT_PRIORITY:
            self._last_of_run = time.monotonic()
        mine = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (priority, number, next(self._ties), mine))
        self._let_in()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._leave()  # it was let in at the moment when it gave up
            raise
        try:
            yield
        finally:
            self._leave()

    def close(self, holder: str) -> None:
        self._holders.add(holder)

    def open(self, holder: str) -> None:
        """Has no effect while others hold it."""
        self._holders.discard(holder)
        self._let_in()

    async def drained(self) -> None:
        """Until what was let in is done. Only sensible while it is closed."""
        await self._empty.wait()

    def _let_in(self) -> None:
        while self._queue and self.is_open and self.running < self._most:
            *_, turn = heapq.heappop(self._queue)
            if turn.done():
                continue
            if not self.running:
                self._busy_since = time.monotonic()
                self._empty.clear()
            self.running += 1
            turn.set_result(None)

    def _leave(self) -> None:
        self.running -= 1
        if not self.running:
            self._busy_s += time.monotonic() - self._busy_since
            self._empty.set()
        self._let_in()
