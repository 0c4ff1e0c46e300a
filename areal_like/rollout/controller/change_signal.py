"""A signal that state has changed, for tasks that wait for a condition."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ChangeSignal:
    """`notify` after each change; waiting tasks then check their condition again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        await self._event.wait()

    async def wait_for(self, check: Callable[[], T | None], limit_s: float) -> T | None:
        """Returns the result of `check` as soon as it is not None; None after `limit_s` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while (result := check()) is None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self.wait()
            except TimeoutError:
                return None
        return result
