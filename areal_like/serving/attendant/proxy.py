"""The engine's own interface for clients of others: what only asks is passed on, with the token that the engine wants.
Everything else that an engine can do stays behind this process."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import aiohttp
import orjson
from aiohttp import web

from areal_like.process.errors import Refused
from areal_like.process.greeting import Proofs
from areal_like.process.http import read_json
from areal_like.process.proven import ProvenConnector
from areal_like.serving.attendant.base import MOST_AT_ONCE, Facts
from areal_like.serving.attendant.gate import Gate
from areal_like.serving.attendant.in_use import InUse
from areal_like.serving.attendant.relay import Relay
from areal_like.serving.attendant.rest import Rest
from areal_like.serving.attendant.strangers import Model, allowed, in_its_turn, sequences
from areal_like.serving.open_routes import ASKING, GENERATING, READING
from areal_like.serving.request import LEAST_URGENT
from areal_like.serving.turns import Turns

KEPT_HEADER = "Accept"
"""Of a client's request. Others could command the engine, or name a request of somebody else."""
STREAMED = "text/event-stream"
GONE_AFTER_S = 0.25

T = TypeVar("T")


class Proxy:
    """`address` is the engine's. Generation takes its turn with what the run asks for, and rests when it does."""

    def __init__(
        self,
        address: str,
        secret: str,
        gate: Gate,
        rest: Rest,
        in_use: InUse,
        facts: Facts,
        proofs: Proofs | None = None,
    ) -> None:
        self._address, self._gate, self._rest, self._in_use = address, gate, rest, in_use
        self._proofs = proofs
        self._headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._session: aiohttp.ClientSession | None = None
        self._numbers = itertools.count(1 << 40)
        self.knows: Callable[[Mapping[str, str]], bool] = lambda headers: False
        """Whether a client shows the key."""
        self._model = Model(facts.vocab_size, facts.context_length)
        self._turns = Turns(MOST_AT_ONCE, lambda: gate.is_used_by_a_run)

    def routes(self) -> list[web.RouteDef]:
        return [
            *(web.get(path, self.ask) for path in ASKING),
            *(web.post(path, self.read) for path in READING),
            *(web.post(path, self.generate) for path in GENERATING),
        ]

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, request: web.Request) -> web.StreamResponse:
        return await self._asked(request, b"")

    async def read(self, request: web.Request) -> web.StreamResponse:
        said = allowed(await read_json(request), self._model, self.knows(request.headers))
        return await self._asked(request, orjson.dumps(said))

    async def _asked(self, request: web.Request, body: bytes) -> web.StreamResponse:
        answer = await self._pass_on(request, body)
        assert answer is not None, "only an interrupted one gives none"
        return await answer.finish() if isinstance(answer, Relay) else answer

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """An answer that was interrupted for new weights is asked for again, if none of it is at the client yet. The
        turn is as long as the engine is busy with it, however slowly the client speaks or listens."""
        said = in_its_turn(await read_json(request), self._model, self.knows(request.headers))
        async with self._turns.take(sequences(said), lambda: is_gone(request)):
            answer = await self._generated(request, orjson.dumps(said))
        return await answer.finish() if isinstance(answer, Relay) else answer

    async def _generated(self, request: web.Request, body: bytes) -> web.Response | Relay:
        while True:
            async with self._gate.turn(LEAST_URGENT, next(self._numbers)):
                if self._in_use.fault is not None:
                    raise Refused(503, f"this server is broken: {self._in_use.fault}")
                answer = await self._pass_on(request, body, self._rest.taken_back)
            if answer is not None:
                return answer

    async def _pass_on(
        self, request: web.Request, body: bytes, taken_back: int | None = None
    ) -> web.Response | Relay | None:
        """None where all that ran was interrupted since."""
        if self._session is None:
            connector = ProvenConnector(self._proofs)
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        said = {KEPT_HEADER: request.headers[KEPT_HEADER]} if KEPT_HEADER in request.headers else {}
        if body:
            said["Content-Type"] = "application/json"
        url = f"http://{self._address}{request.path}"
        try:
            call = self._session.request(request.method, url, data=body, headers={**said, **self._headers})
            response = await while_there(request, call)
            async with response:
                kind = response.headers.get("Content-Type", "application/octet-stream")
                if kind.startswith(STREAMED):
                    return await _relayed(request, response, kind)
                content = await while_there(request, response.read())
        except aiohttp.ClientError as fault:
            raise Refused(503, f"the engine does not answer: {fault or type(fault).__name__}") from fault
        if taken_back is not None and taken_back != self._rest.taken_back:
            return None
        return web.Response(body=content, status=response.status, headers={"Content-Type": kind})


async def _relayed(request: web.Request, source: aiohttp.ClientResponse, kind: str) -> Relay:
    relay = Relay(request, web.StreamResponse(status=source.status, headers={"Content-Type": kind}))
    await relay.take(source)
    return relay


def is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def while_there(request: web.Request, doing: Awaitable[T]) -> T:
    """Gives up when the client has gone: the other side then sees that nobody waits for its answer."""
    task = asyncio.ensure_future(doing)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=GONE_AFTER_S)
            if not task.done() and is_gone(request):
                raise ConnectionResetError("the client is gone")
        return task.result()
    finally:
        task.cancel()
