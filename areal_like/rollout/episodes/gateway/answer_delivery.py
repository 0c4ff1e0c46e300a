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
class PendingAnswer:
    fingerprint: int
    key: str | None
    task: "asyncio.Task[GatewayAnswer]"
    requests: list[web.Request] = field(default_factory=list)
    is_delivered: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether nobody waits for it or has got it."""
        return not self.is_delivered and all(_is_closed(request) for request in self.requests)


class PendingAnswers:
    """Of one episode."""

    def __init__(self) -> None:
        self._answers: list[PendingAnswer] = []
        self.num_unfinished = 0
        """Calls that were still generated when the episode ended."""

    async def deliver(self, request: web.Request, start: Callable[[], Awaitable[GatewayAnswer]]) -> web.StreamResponse:
        """The answer of an equal request that is repeated, or else of a new call."""
        pending = self._repeated(request, fingerprint := await _fingerprint(request))
        if pending is None:
            task = asyncio.create_task(_as_task(start))
            pending = PendingAnswer(fingerprint, request.headers.get(IDEMPOTENCY_KEY), task)
            self._answers.append(pending)
        pending.requests.append(request)
        try:
            answer = await asyncio.shield(pending.task)
        except BaseException:
            if pending.task.done() and pending in self._answers:
                self._answers.remove(pending)  # a failure is no answer: the next request tries again
            raise
        response = await _send(request, answer)
        if not _is_closed(request):
            pending.is_delivered = True
            for call in answer.calls:
                call.is_delivered = True
        return response

    async def close(self) -> None:
        tasks = [pending.task for pending in self._answers]
        self.num_unfinished = sum(not task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _repeated(self, request: web.Request, fingerprint: int) -> PendingAnswer | None:
        """The newest one. Equal requests are several calls, unless the client says that it repeats one, or its
        connection was cut."""
        key, is_retry = request.headers.get(IDEMPOTENCY_KEY), request.headers.get(RETRY_COUNT, "0") not in ("", "0")
        for pending in reversed(self._answers):
            is_named = key is not None and pending.key == key
            if pending.fingerprint == fingerprint and (is_named or is_retry or pending.is_cut):
                return pending
        return None


async def _as_task(start: Callable[[], Awaitable[GatewayAnswer]]) -> GatewayAnswer:
    return await start()


async def _fingerprint(request: web.Request) -> int:
    return xxhash.xxh3_64_intdigest(request.rel_url.raw_path.encode() + b"\0" + await request.read())


def _is_closed(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


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
