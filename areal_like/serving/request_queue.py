"""The queue in front of an engine: limits concurrent requests, orders them by priority, and can be held."""

import asyncio
import heapq
import itertools
import math
import time
from dataclasses import dataclass

from areal_like.serving.client_queue import RUN_ACTIVE_S
from areal_like.serving.engines.base import MAX_IN_FLIGHT
from areal_like.serving.requests import CLIENT_PRIORITY


class RequestQueue:
    """`running` requests are in the engine, `waiting` ones in the queue."""

    def __init__(self, max_running: int | None = MAX_IN_FLIGHT) -> None:
        """None: all of them."""
        self.running = 0
        self._max_running = math.inf if max_running is None else max_running
        self._holders: set[str] = set()
        self._queue: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._ties = itertools.count()
        self._empty = asyncio.Event()
        self._empty.set()
        self._busy_s, self._busy_since = 0.0, 0.0
        self._last_run_request = -math.inf

    @property
    def is_used_by_run(self) -> bool:
        """Whether a run sent a request recently."""
        return time.monotonic() - self._last_run_request < RUN_ACTIVE_S

    @property
    def waiting(self) -> int:
        return sum(not slot.done() for *_, slot in self._queue)

    @property
    def is_open(self) -> bool:
        return not self._holders

    @property
    def busy_s(self) -> float:
        """Total time with at least one running request."""
        return self._busy_s + (time.monotonic() - self._busy_since if self.running else 0.0)

    def slot(self, priority: int, number: int) -> "Slot":
        """For `async with`: smaller priorities go first, and among equal ones smaller numbers."""
        return Slot(self, priority, number)

    async def enter(self, priority: int, number: int) -> None:
        if priority < CLIENT_PRIORITY:
            self._last_run_request = time.monotonic()
        if self._has_room and not self._queue:
            self._add_running()
            return
        slot = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (priority, number, next(self._ties), slot))
        self._admit()
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self.leave()  # cancelled just after it was admitted
            raise

    def leave(self) -> None:
        self.running -= 1
        if not self.running:
            self._busy_s += time.monotonic() - self._busy_since
            self._empty.set()
        self._admit()

    def hold(self, holder: str) -> None:
        self._holders.add(holder)

    def release(self, holder: str) -> None:
        """Has no effect while another holder remains."""
        self._holders.discard(holder)
        self._admit()

    async def drained(self) -> None:
        """Waits until no request is running. Only useful while the queue is held."""
        await self._empty.wait()

    def _admit(self) -> None:
        while self._queue and self._has_room:
            *_, slot = heapq.heappop(self._queue)
            if not slot.done():
                self._add_running()
                slot.set_result(None)

    @property
    def _has_room(self) -> bool:
        return self.is_open and self.running < self._max_running

    def _add_running(self) -> None:
        if not self.running:
            self._busy_since = time.monotonic()
            self._empty.clear()
        self.running += 1


@dataclass(eq=False, slots=True)
class Slot:
    """A place among the running requests. A class, since a generator made for each request costs more."""

    queue: RequestQueue
    priority: int
    number: int

    async def __aenter__(self) -> None:
        await self.queue.enter(self.priority, self.number)

    async def __aexit__(self, *_: object) -> None:
        self.queue.leave()
