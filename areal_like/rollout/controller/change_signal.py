"""Waiting for something to change, without asking again and again."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ChangeSignal:
    """`ring` after a change; whoever waits looks again then."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def next(self) -> None:
        await self._event.wait()

    async def until(self, look: Callable[[], T | None], limit_s: float) -> T | None:
        """What `look` finds, as soon as it finds something; None after so many seconds without."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while (found := look()) is None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self.next()
            except TimeoutError:
                return None
        return found
