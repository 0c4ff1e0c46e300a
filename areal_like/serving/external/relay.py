"""An answer that comes in parts, on its way to somebody who may be slow. The engine never waits for that: it is read as
fast as it speaks, and what is not taken is kept here for a while."""

import asyncio

import aiohttp
from aiohttp import web

WRITE_TIMEOUT_S = 10.0
"""A client that takes nothing of its answer for so long is cut off,"""
MAX_UNREAD_BYTES = 16 << 20
"""and so is one that lags so many bytes behind."""
DISCONNECT_CHECK_S = 0.25


class StreamRelay:
    """`take` ends with the engine's answer, `finish` when the client has all of it."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self._request, self._response = request, response
        self._parts: asyncio.Queue[bytes] = asyncio.Queue()
        self._unread = 0
        self._writing = asyncio.create_task(self._write())

    async def take(self, source: aiohttp.ClientResponse) -> None:
        """Ends early, and with it the engine's work, where nobody wants the rest."""
        reading = asyncio.create_task(self._read(source))
        try:
            while not (reading.done() or self._writing.done() or self._is_gone):
                await asyncio.wait(
                    [reading, self._writing], timeout=DISCONNECT_CHECK_S, return_when=asyncio.FIRST_COMPLETED
                )
            if reading.done():
                reading.result()
        except (aiohttp.ClientError, BufferError):
            self._cut_off()
        except BaseException:
            self._writing.cancel()
            raise
        finally:
            reading.cancel()
        if self._is_gone:
            self._writing.cancel()

    async def finish(self) -> web.StreamResponse:
        try:
            await asyncio.wait([self._writing])
        finally:
            self._writing.cancel()
        return self._response

    async def _read(self, source: aiohttp.ClientResponse) -> None:
        async for part in source.content.iter_any():
            self._unread += len(part)
            if self._unread > MAX_UNREAD_BYTES:
                raise BufferError
            if part:
                self._parts.put_nowait(part)
        self._parts.put_nowait(b"")

    async def _write(self) -> None:
        try:
            await asyncio.wait_for(self._response.prepare(self._request), WRITE_TIMEOUT_S)
            while part := await self._parts.get():
                await asyncio.wait_for(self._response.write(part), WRITE_TIMEOUT_S)
                self._unread -= len(part)
            await asyncio.wait_for(self._response.write_eof(), WRITE_TIMEOUT_S)
        except TimeoutError:
            self._cut_off()
        except ConnectionError:
            pass  # the client is gone

    @property
    def _is_gone(self) -> bool:
        return self._request.transport is None or self._request.transport.is_closing()

    def _cut_off(self) -> None:
        """The client must not take this for the end of the answer."""
        self._writing.cancel()
        if self._request.transport is not None:
            self._request.transport.abort()
