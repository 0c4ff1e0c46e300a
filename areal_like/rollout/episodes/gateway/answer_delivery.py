"""Answers on their way to a client: a repeated request gets the answer of the first one, and lost ones are known."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import xxhash
from aiohttp import web

from areal_like.process.http import json_response
from areal_like.rollout.episodes.gateway.call_tree import AgentCall

IDEMPOTENCY_KEY, RETRY_COUNT = "Idempotency-Key", "X-Stainless-Retry-Count"
"""Headers of a client that repeats a request: any name for it, or how often (clients of OpenAI and Anthropic)."""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class GatewayAnswer:
    """`content` is the body; `events` the same as (name, data) of a stream, where the client asked for one."""

    calls: list[AgentCall]
    content: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]] | None = None
    ends_with_done: bool = True


@dataclass(eq=False)
class ClientRequest:
    """One request for an answer: `retry` is how often the client has repeated it already. A connection is closed by a
    client that no longer waits."""

    retry: int
    key: str | None
    transport: asyncio.BaseTransport | None
    pending: "PendingAnswer"
    is_answered: bool = False
    is_repeated: bool = False
    """Whether a later request was taken for its repetition."""

    @property
    def is_closed(self) -> bool:
        return self.transport is None or self.transport.is_closing()


@dataclass(eq=False)
class PendingAnswer:
    task: "asyncio.Task[GatewayAnswer]"
    requests: list[ClientRequest] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    @property
    def is_cut(self) -> bool:
        """Whether nobody waits for it or has got it."""
        return all(each.is_closed and not each.is_answered for each in self.requests)


class PendingAnswers:
    """Of one episode."""

    def __init__(self) -> None:
        self._answers: list[PendingAnswer] = []
        self._of_body: dict[int, list[PendingAnswer]] = {}
        """By the fingerprint of the request."""
        self.num_unfinished = 0
        """Calls that were still generated when the episode ended."""

    async def deliver(self, request: web.Request, start: Callable[[], Awaitable[GatewayAnswer]]) -> web.StreamResponse:
        """The answer of an equal request that is repeated, or else of a new call."""
        fingerprint, key, retry = await _fingerprint(request), request.headers.get(IDEMPOTENCY_KEY), _retry(request)
        await asyncio.sleep(0)  # connections that clients have closed are seen before
        equal = self._of_body.setdefault(fingerprint, [])
        pending = _repeated(equal, key, retry)
        if pending is None:
            pending = PendingAnswer(asyncio.create_task(_as_task(start)))
            equal.append(pending)
            self._answers.append(pending)
        asked = ClientRequest(retry, key, request.transport, pending)
        pending.requests.append(asked)
        answer = await asyncio.shield(pending.task)
        response = await _send(request, answer)
        if not asked.is_closed:
            asked.is_answered = True
            for call in answer.calls:
                call.is_delivered = True
        return response

    async def close(self) -> None:
        tasks = [pending.task for pending in self._answers]
        self.num_unfinished = sum(not task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _repeated(equal: list[PendingAnswer], key: str | None, retry: int) -> PendingAnswer | None:
    """The answer that a request repeats the request for, of all that equal requests began. Equal requests are several
    calls, unless the client says that it repeats one, or the connection of one was cut. A client that repeats one has
    not got its answer: that of another call is not given to it."""
    answers = [each for each in equal if not each.has_failed]
    if key is not None:
        return next((each for each in answers if any(key == one.key for one in each.requests)), None)
    if (cut := next((each for each in answers if each.is_cut), None)) is not None:
        for request in cut.requests:
            request.is_repeated = True
        return cut
    if not retry:
        return None
    before = [one for each in equal for one in each.requests if one.retry == retry - 1 and not one.is_repeated]
    for may_be in (_has_failed, _is_waiting, _may_be_lost):
        for request in filter(may_be, before):
            request.is_repeated = True
            return None if request.pending.has_failed else request.pending
    return None


def _has_failed(request: ClientRequest) -> bool:
    return request.pending.has_failed


def _is_waiting(request: ClientRequest) -> bool:
    """Also where something between hides that the client has gone."""
    return not request.is_answered and not request.is_closed


def _may_be_lost(request: ClientRequest) -> bool:
    """The client may have gone while its answer was sent."""
    return request.is_answered and request.is_closed


def _retry(request: web.Request) -> int:
    number = request.headers.get(RETRY_COUNT, "")
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 5 else 0


async def _as_task(start: Callable[[], Awaitable[GatewayAnswer]]) -> GatewayAnswer:
    return await start()


async def _fingerprint(request: web.Request) -> int:
    return xxhash.xxh3_64_intdigest(request.rel_url.raw_path.encode() + b"\0" + await request.read())


async def _send(request: web.Request, answer: GatewayAnswer) -> web.StreamResponse:
    """Returns when it is written, so that a cut connection is seen."""
    if answer.events is None:
        response: web.StreamResponse = json_response(answer.content)
        parts = []
    else:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        parts = [_event(name, data) for name, data in answer.events]
        parts += [DONE] if answer.ends_with_done else []
    try:
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        await response.write_eof()
    except (ConnectionError, RuntimeError):  # the client has gone
        return response
    return response


def _event(name: str, data: dict[str, Any]) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"
