"""The deadline of an answer to an async reward. It does not run while the answer waits for its turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self


class Deadline:
    """`async with` it: a block that takes longer is cancelled, with TimeoutError. `on_wait` is called with whether the
    answer waits, whenever that changes."""

    def __init__(self, limit_s: float, on_wait: Callable[[bool], None]) -> None:
        self._limit_s, self._on_wait = limit_s, on_wait
        self._timeout = asyncio.timeout(limit_s)
        self._num_waits = 0

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        _of_answer.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, fault, trace)

    @property
    def has_expired(self) -> bool:
        return self._timeout.expired()

    def wait(self) -> None:
        """Several parts of a reward may wait at once."""
        self._num_waits += 1
        if self._num_waits == 1 and not self.has_expired:
            self._timeout.reschedule(None)
            self._on_wait(True)

    def go_on(self) -> None:
        """Begins anew when nothing of the answer waits any more."""
        self._num_waits -= 1
        if not self._num_waits and not self.has_expired:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._limit_s)
            self._on_wait(False)


_of_answer: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@asynccontextmanager
async def waiting() -> AsyncIterator[None]:
    """What an answer waits for here has a limit of its own, and is no fault of the reward."""
    deadline = _of_answer.get()
    if deadline is None:
        yield
        return
    deadline.wait()
    try:
        yield
    finally:
        deadline.go_on()


@asynccontextmanager
async def turn(places: asyncio.Semaphore) -> AsyncIterator[None]:
    """`async with places`, without the time until there is one."""
    if places.locked():
        async with waiting():
            await places.acquire()
    else:
        await places.acquire()
    try:
        yield
    finally:
        places.release()
