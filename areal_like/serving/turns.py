"""How much of the engine clients get: so many sequences at once, the rest waits before it, and too many are refused."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from areal_like.process.errors import Refused

MOST_WAITING = 4096
"""Sequences."""
SHARE_BESIDE_A_RUN = 4
"""The part of the engine's sequences that clients have while a run uses it: one in so many."""
USED_S = 600.0
"""For so long after it has asked for something, a run uses a server."""
GONE_AFTER_S = 0.25


class Turns:
    """`most` says how many sequences may be in the engine now. First come, first served."""

    def __init__(self, most: Callable[[], int]) -> None:
        self.running = self.waiting = 0
        self._most = most
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, count: int, is_gone: Callable[[], bool]) -> AsyncIterator[None]:
        """A turn for so many sequences. Raises Refused where too many wait, and ConnectionResetError where the client
        is gone before its turn has come."""
        if self.waiting + count > MOST_WAITING:
            raise Refused(429, f"{self.waiting} sequences wait for their turn already; ask again later")
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((count, mine))
        self.waiting += count
        self._let_in()
        try:
            await self._turn_of(mine, is_gone)
        except BaseException:
            self._give_up(count, mine)
            raise
        try:
            yield
        finally:
            self.running -= count
            self._let_in()

    async def _turn_of(self, mine: "asyncio.Future[None]", is_gone: Callable[[], bool]) -> None:
        while not mine.done():
            await asyncio.wait([mine], timeout=GONE_AFTER_S)
            if not mine.done() and is_gone():
                raise ConnectionResetError("the client is gone")

    def _give_up(self, count: int, mine: "asyncio.Future[None]") -> None:
        if mine.done():
            self.running -= count
        else:
            self.waiting -= count
            self._queue.remove((count, mine))
        self._let_in()

    def _let_in(self) -> None:
        """One that wants more than there ever is goes alone."""
        while self._queue and (not self.running or self.running + self._queue[0][0] <= self._most()):
            count, turn = self._queue.popleft()
            self.waiting -= count
            self.running += count
            turn.set_result(None)
