"""The queue of public clients: limits their sequences in the engine, and refuses requests when it is full."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from areal_like.process.errors import HttpError
from areal_like.serving.client_connection import DISCONNECT_CHECK_S

MAX_WAITING = 4096
"""Waiting sequences."""
CLIENT_SHARE = 4
"""While a run uses the engine, clients get 1 of this many of its sequences."""
RUN_ACTIVE_S = 600.0
"""A run uses a server for that long after its last request."""


class ClientQueue:
    """`capacity` concurrent sequences of clients, or their share of it while a run uses the engine. First in, first
    out."""

    def __init__(self, capacity: int, is_used_by_run: Callable[[], bool]) -> None:
        self.running = self.waiting = 0
        self._capacity, self._is_used_by_run = capacity, is_used_by_run
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def limit(self) -> int:
        return max(1, self._capacity // CLIENT_SHARE) if self._is_used_by_run() else self._capacity

    @asynccontextmanager
    async def take(self, count: int, is_gone: Callable[[], bool]) -> AsyncIterator[None]:
        """Waits for `count` sequences. Raises HttpError if the queue is full or `count` exceeds the clients' share, and
        ConnectionResetError if the client disconnects before."""
        if count > MAX_WAITING:
            raise HttpError(400, f"{count} sequences are too many for one request; ask for at most {MAX_WAITING}")
        if self.waiting + count > MAX_WAITING:
            raise HttpError(429, f"{self.waiting} sequences are waiting already; try again later")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((count, turn))
        self.waiting += count
        self._admit()
        try:
            await self._wait(turn, is_gone)
        except BaseException:
            self._cancel(count, turn)
            raise
        try:
            yield
        finally:
            self.running -= count
            self._admit()

    async def _wait(self, turn: "asyncio.Future[None]", is_gone: Callable[[], bool]) -> None:
        while not turn.done():
            await asyncio.wait([turn], timeout=DISCONNECT_CHECK_S)
            if not turn.done() and is_gone():
                raise ConnectionResetError("the client is gone")
        turn.result()

    def _cancel(self, count: int, turn: "asyncio.Future[None]") -> None:
        if turn.done():
            self.running -= 0 if turn.exception() else count
        else:
            self.waiting -= count
            self._queue.remove((count, turn))
        self._admit()

    def _admit(self) -> None:
        """A request above the whole capacity runs alone, but not beside a run."""
        while self._queue:
            (count, turn), limit = self._queue[0], self.limit
            is_too_large = count > limit and self._is_used_by_run()
            if not is_too_large and self.running and self.running + count > limit:
                return
            self._queue.popleft()
            self.waiting -= count
            if is_too_large:
                turn.set_exception(_too_large(count, limit))
                continue
            self.running += count
            turn.set_result(None)


def _too_large(count: int, limit: int) -> HttpError:
    return HttpError(
        400,
        f"{count} sequences are too many for one request while a run uses this server; ask for at most {limit} "
        "(prompts times n)",
    )
