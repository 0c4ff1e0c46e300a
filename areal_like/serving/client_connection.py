"""Whether a client is still connected while it waits for an answer."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from aiohttp import web

DISCONNECT_CHECK_S = 0.25
"""Interval at which it is checked."""

T = TypeVar("T")


def is_disconnected(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def while_connected(request: web.Request, call: Awaitable[T]) -> T:
    """Cancels the call, and raises ConnectionResetError, when the client has disconnected."""
    task = asyncio.ensure_future(call)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=DISCONNECT_CHECK_S)
            if not task.done() and is_disconnected(request):
                raise ConnectionResetError("the client has disconnected")
        return task.result()
    finally:
        task.cancel()
