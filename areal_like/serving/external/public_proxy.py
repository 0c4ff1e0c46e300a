"""The engine's own interface for clients of others: what only asks is passed on, with the token that the engine wants.
Everything else that an engine can do stays behind this process."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import aiohttp
import orjson
from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import read_json
from areal_like.process.proof_connector import ProofConnector
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.serving.client_queue import ClientQueue
from areal_like.serving.external.base import MAX_IN_FLIGHT, EngineInfo
from areal_like.serving.external.client_filter import ModelLimits, count_sequences, filter_body, filter_generation
from areal_like.serving.external.pauser import Pauser
from areal_like.serving.external.relay import StreamRelay
from areal_like.serving.external.request_queue import RequestQueue
from areal_like.serving.external.served_weights import ServedWeights
from areal_like.serving.open_paths import GENERATE_PATHS, QUERY_PATHS, TOKENIZE_PATHS
from areal_like.serving.requests import CLIENT_PRIORITY

FORWARDED_HEADER = "Accept"
"""Of a client's request. Others could command the engine, or name a request of somebody else."""
STREAMED = "text/event-stream"
DISCONNECT_CHECK_S = 0.25

T = TypeVar("T")


class PublicProxy:
    """`address` is the engine's. Generation takes its turn with what the run asks for, and rests when it does."""

    def __init__(
        self,
        address: str,
        secret: str,
        queue: RequestQueue,
        pauser: Pauser,
        served: ServedWeights,
        info: EngineInfo,
        proofs: ProofVerifier | None = None,
    ) -> None:
        self._address, self._queue, self._pauser, self._served = address, queue, pauser, served
        self._proofs = proofs
        self._headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._session: aiohttp.ClientSession | None = None
        self._numbers = itertools.count(1 << 40)
        self.knows: Callable[[Mapping[str, str]], bool] = lambda headers: False
        """Whether a client shows the key."""
        self._model = ModelLimits(info.vocab_size, info.context_length)
        self._turns = ClientQueue(MAX_IN_FLIGHT, lambda: queue.is_used_by_run)

    def routes(self) -> list[web.RouteDef]:
        return [
            *(web.get(path, self.ask) for path in QUERY_PATHS),
            *(web.post(path, self.read) for path in TOKENIZE_PATHS),
            *(web.post(path, self.generate) for path in GENERATE_PATHS),
        ]

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, request: web.Request) -> web.StreamResponse:
        return await self._asked(request, b"")

    async def read(self, request: web.Request) -> web.StreamResponse:
        said = filter_body(await read_json(request), self._model, self.knows(request.headers))
        return await self._asked(request, orjson.dumps(said))

    async def _asked(self, request: web.Request, body: bytes) -> web.StreamResponse:
        answer = await self._pass_on(request, body)
        assert answer is not None, "only an interrupted one gives none"
        return await answer.finish() if isinstance(answer, StreamRelay) else answer

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """An answer that was interrupted for new weights is asked for again, if none of it is at the client yet. The
        turn is as long as the engine is busy with it, however slowly the client speaks or listens."""
        said = filter_generation(await read_json(request), self._model, self.knows(request.headers))
        async with self._turns.take(count_sequences(said), lambda: is_disconnected(request)):
            answer = await self._generated(request, orjson.dumps(said))
        return await answer.finish() if isinstance(answer, StreamRelay) else answer

    async def _generated(self, request: web.Request, body: bytes) -> web.Response | StreamRelay:
        while True:
            async with self._queue.turn(CLIENT_PRIORITY, next(self._numbers)):
                if self._served.fault is not None:
                    raise HttpError(503, f"this server is broken: {self._served.fault}")
                answer = await self._pass_on(request, body, self._pauser.num_aborts)
            if answer is not None:
                return answer

    async def _pass_on(
        self, request: web.Request, body: bytes, num_aborts: int | None = None
    ) -> web.Response | StreamRelay | None:
        """None where all that ran was interrupted since."""
        if self._session is None:
            connector = ProofConnector(self._proofs)
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        said = {FORWARDED_HEADER: request.headers[FORWARDED_HEADER]} if FORWARDED_HEADER in request.headers else {}
        if body:
            said["Content-Type"] = "application/json"
        url = f"http://{self._address}{request.path}"
        try:
            call = self._session.request(request.method, url, data=body, headers={**said, **self._headers})
            response = await while_connected(request, call)
            async with response:
                kind = response.headers.get("Content-Type", "application/octet-stream")
                if kind.startswith(STREAMED):
                    return await _relayed(request, response, kind)
                content = await while_connected(request, response.read())
        except aiohttp.ClientError as fault:
            raise HttpError(503, f"the engine does not answer: {fault or type(fault).__name__}") from fault
        if num_aborts is not None and num_aborts != self._pauser.num_aborts:
            return None
        return web.Response(body=content, status=response.status, headers={"Content-Type": kind})


async def _relayed(request: web.Request, source: aiohttp.ClientResponse, kind: str) -> StreamRelay:
    relay = StreamRelay(request, web.StreamResponse(status=source.status, headers={"Content-Type": kind}))
    await relay.take(source)
    return relay


def is_disconnected(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def while_connected(request: web.Request, doing: Awaitable[T]) -> T:
    """Gives up when the client has gone: the other side then sees that nobody waits for its answer."""
    task = asyncio.ensure_future(doing)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=DISCONNECT_CHECK_S)
            if not task.done() and is_disconnected(request):
                raise ConnectionResetError("the client is gone")
        return task.result()
    finally:
        task.cancel()
