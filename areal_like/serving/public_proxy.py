"""The engine's public routes for clients outside the run: filtered requests are forwarded with the engine's token;
every other route of the engine is unreachable."""

import asyncio

import aiohttp
import orjson
from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import read_json
from areal_like.process.proof_connector import ProofConnector
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.serving.client_connection import DISCONNECT_CHECK_S, is_disconnected, while_connected
from areal_like.serving.client_filter import ModelLimits, count_sequences, filter_body, filter_generation
from areal_like.serving.client_queue import ClientQueue
from areal_like.serving.control_protocol import GENERATE_PATHS, QUERY_PATHS, TOKENIZE_PATHS
from areal_like.serving.engines.base import MAX_IN_FLIGHT, REQUEST_TIMEOUT, ClientAccess, EngineInfo

FORWARDED_HEADER = "Accept"
"""The only header forwarded from a client: others could control the engine, or name another client's request."""
STREAMED = "text/event-stream"
WRITE_TIMEOUT_S = 10.0
"""A client that reads nothing of its answer for that long is cut off."""
MAX_UNREAD_BYTES = 16 << 20
"""A client that lags that many bytes behind is cut off."""


class StreamRelay:
    """A streamed answer for a slow client: read as fast as the engine sends it, and buffered until the client reads it.
    `take` ends with the engine's answer, `finish` when the client has all of it."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self._request, self._response = request, response
        self._parts: asyncio.Queue[bytes] = asyncio.Queue()
        self._unread = 0
        self._writing = asyncio.create_task(self._write())

    async def take(self, source: aiohttp.ClientResponse) -> None:
        """Ends early, and with it the engine's work, if the client is gone."""
        reading = asyncio.create_task(self._read(source))
        try:
            while not (reading.done() or self._writing.done() or self._is_gone):
                await asyncio.wait(
                    [reading, self._writing], timeout=DISCONNECT_CHECK_S, return_when=asyncio.FIRST_COMPLETED
                )
            if reading.done():
                reading.result()
        except (aiohttp.ClientError, BufferError, TimeoutError):
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
        return is_disconnected(self._request)

    def _cut_off(self) -> None:
        """Aborts the connection: a regular end would look like the end of the answer."""
        self._writing.cancel()
        if self._request.transport is not None:
            self._request.transport.abort()


class PublicProxy:
    """`address` is the engine's. Generation waits in the run's queue, and is paused with it."""

    def __init__(
        self, address: str, secret: str, proofs: ProofVerifier | None, info: EngineInfo, access: ClientAccess
    ) -> None:
        self._address, self._proofs, self._access = address, proofs, access
        self._headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._session: aiohttp.ClientSession | None = None
        self._limits = ModelLimits(info.vocab_size, info.context_length)
        self._clients = ClientQueue(MAX_IN_FLIGHT, lambda: access.is_used_by_run)

    def routes(self) -> list[web.RouteDef]:
        return [
            *(web.get(path, self.query) for path in QUERY_PATHS),
            *(web.post(path, self.tokenize) for path in TOKENIZE_PATHS),
            *(web.post(path, self.generate) for path in GENERATE_PATHS),
        ]

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def query(self, request: web.Request) -> web.StreamResponse:
        return await self._forward_once(request, b"")

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        body = filter_body(await read_json(request), self._limits, self._access.knows(request.headers))
        return await self._forward_once(request, orjson.dumps(body))

    async def _forward_once(self, request: web.Request, body: bytes) -> web.StreamResponse:
        answer = await self._forward(request, body)
        assert answer is not None, "None is for interrupted generation alone"
        return await answer.finish() if isinstance(answer, StreamRelay) else answer

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Repeats an answer that a weight update interrupted if the client has none of it yet. Holds the slot while the
        engine works, not while the client reads or writes."""
        body = filter_generation(await read_json(request), self._limits, self._access.knows(request.headers))
        async with self._clients.take(count_sequences(body), lambda: is_disconnected(request)):
            answer = await self._generate(request, orjson.dumps(body))
        return await answer.finish() if isinstance(answer, StreamRelay) else answer

    async def _generate(self, request: web.Request, body: bytes) -> web.Response | StreamRelay:
        while True:
            async with self._access.slot():
                answer = await self._forward(request, body, self._access.num_aborts)
            if answer is not None:
                return answer

    async def _forward(
        self, request: web.Request, body: bytes, num_aborts: int | None = None
    ) -> web.Response | StreamRelay | None:
        """None if all requests were aborted since `num_aborts` was read."""
        if self._session is None:
            connector = ProofConnector(self._proofs)
            timeout = aiohttp.ClientTimeout(total=self._access.request_timeout_s)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        headers = {FORWARDED_HEADER: request.headers[FORWARDED_HEADER]} if FORWARDED_HEADER in request.headers else {}
        if body:
            headers["Content-Type"] = "application/json"
        url = f"http://{self._address}{request.path}"
        try:
            call = self._session.request(request.method, url, data=body, headers={**headers, **self._headers})
            response = await while_connected(request, call)
            async with response:
                kind = response.headers.get("Content-Type", "application/octet-stream")
                if kind.startswith(STREAMED):
                    return await _relay(request, response, kind)
                content = await while_connected(request, response.read())
        except TimeoutError as late:
            limit = f"{self._access.request_timeout_s:g} s ({REQUEST_TIMEOUT})"
            raise HttpError(503, f"the engine did not answer within {limit}") from late
        except aiohttp.ClientError as fault:
            raise HttpError(503, f"the engine does not answer: {fault or type(fault).__name__}") from fault
        if num_aborts is not None and num_aborts != self._access.num_aborts:
            return None
        return web.Response(body=content, status=response.status, headers={"Content-Type": kind})


async def _relay(request: web.Request, source: aiohttp.ClientResponse, kind: str) -> StreamRelay:
    relay = StreamRelay(request, web.StreamResponse(status=source.status, headers={"Content-Type": kind}))
    await relay.take(source)
    return relay
