"""How much of the engine clients get: so many sequences at once, the rest waits before it, and too many are refused."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from areal_like.process.errors import HttpError

MAX_WAITING = 4096
"""Sequences."""
CLIENT_SHARE = 4
"""The part of the engine's sequences that clients have while a run uses it: one in so many."""
RUN_ACTIVE_S = 600.0
"""For so long after it has asked for something, a run uses a server."""
DISCONNECT_CHECK_S = 0.25


class ClientQueue:
    """`most` sequences of clients may be in the engine at once, or their share of it while a run uses it. First come,
    first served."""

    def __init__(self, most: int, is_used_by_run: Callable[[], bool]) -> None:
        self.running = self.waiting = 0
        self._whole, self._is_used_by_run = most, is_used_by_run
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def most(self) -> int:
        return max(1, self._whole // CLIENT_SHARE) if self._is_used_by_run() else self._whole

    @asynccontextmanager
    async def take(self, count: int, is_gone: Callable[[], bool]) -> AsyncIterator[None]:
        """A turn for so many sequences. Raises Refused where too many wait, or where these are more than clients may
        ever have beside a run, and ConnectionResetError where the client is gone before its turn has come."""
        if count > MAX_WAITING:
            raise HttpError(400, f"{count} sequences are too many for one request; ask for at most {MAX_WAITING}")
        if self.waiting + count > MAX_WAITING:
            raise HttpError(429, f"{self.waiting} sequences wait for their turn already; ask again later")
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
            await asyncio.wait([mine], timeout=DISCONNECT_CHECK_S)
            if not mine.done() and is_gone():
                raise ConnectionResetError("the client is gone")
        mine.result()

    def _give_up(self, count: int, mine: "asyncio.Future[None]") -> None:
        if mine.done():
            self.running -= 0 if mine.exception() else count
        else:
            self.waiting -= count
            self._queue.remove((count, mine))
        self._let_in()

    def _let_in(self) -> None:
        """One that wants more than the whole engine takes goes alone, but not beside a run."""
        while self._queue:
            (count, turn), most = self._queue[0], self.most
            is_too_large = count > most and self._is_used_by_run()
            if not is_too_large and self.running and self.running + count > most:
                return
            self._queue.popleft()
            self.waiting -= count
            if is_too_large:
                turn.set_exception(_too_large(count, most))
                continue
            self.running += count
            turn.set_result(None)


def _too_large(count: int, most: int) -> HttpError:
    return HttpError(
        400,
        f"{count} sequences are too many for one request while a run uses this server; ask for at most {most} at once "
        "(prompts times n)",
    )
