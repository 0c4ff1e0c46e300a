"""Client for generation: sends the calls of one event loop turn in one request, streams the answers, and retries."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from areal_like.process.errors import Failure, HttpError, Unreachable
from areal_like.process.http import HttpClient, error_message
from areal_like.serving.control_protocol import ANY_WEIGHTS

RETRY_DELAY_S = 0.2
"""Before the first retry; doubled before each further one."""
HEALTH_TIMEOUT_S = 5.0
"""A server that does not answer /health in this time is gone."""
RETRYABLE = (408, 429)
"""Refusals that are retried, like all from 500."""
SUPERSEDED_STATUSES = (401, 409)
"""Statuses for a process that was replaced."""

log = logging.getLogger(__name__)

AnotherServer = Callable[[str, str], Awaitable[str]]
"""(lease, address of the server that is gone) -> address of another server."""


class GenerationError(Exception):
    """A server gave no answer, also after retries."""


class LeaseCancelled(Exception):
    """The result of the lease is no longer needed."""


class Superseded(Failure):
    """This process was replaced, or its run was started again."""


@dataclass(slots=True)
class LeaseRoute:
    """The server of a lease: the same for all its calls, until it is gone."""

    lease: str
    server: str


@dataclass(eq=False, slots=True)
class _Call:
    group: dict[str, Any]
    answer: "asyncio.Future[list[dict[str, Any]]]"


class GenerationClient:
    """`await generate(route, group)` returns the samples of the group as the server sent them."""

    def __init__(
        self,
        http: HttpClient,
        timeout_s: float,
        retries: int,
        another_server: AnotherServer,
        any_weights: bool = False,
    ) -> None:
        """`any_weights`: also those with which the servers were started."""
        self._options = {ANY_WEIGHTS: True} if any_weights else {}
        self._http, self._timeout_s, self._retries = http, timeout_s, retries
        self._another_server = another_server
        self._calls: dict[str, list[_Call]] = {}
        self._requests: set[asyncio.Task[None]] = set()

    async def generate(self, route: LeaseRoute, group: dict[str, Any]) -> list[dict[str, Any]]:
        reason = ""
        for number in range(self._retries + 1):
            if number:
                log.warning("%s at %s: %s; retrying", group["id"], route.server, reason)
                await asyncio.sleep(RETRY_DELAY_S * 2 ** (number - 1))
            try:
                return await self._call(route.server, group)
            except GenerationError as fault:
                reason = str(fault)
            except HttpError as refusal:
                reason = refusal.message
                if refusal.status in SUPERSEDED_STATUSES:
                    raise Superseded(f"server {route.server} refuses this process: {reason}") from None
                if refusal.status < 500 and refusal.status not in RETRYABLE:
                    raise GenerationError(f"{route.server} refuses the request: {reason}") from None
            except Unreachable as fault:
                reason = fault.why
                if not await self.is_alive(route.server):
                    log.warning("server %s is gone (%s): requesting another one", route.server, reason)
                    route.server = await self._another_server(route.lease, route.server)
        tries = f"{self._retries + 1} tries (rollout.request_retries)" if self._retries else "one try"
        raise GenerationError(f"no answer from {route.server} after {tries}: {reason}")

    async def close(self) -> None:
        for request in list(self._requests):
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    async def _call(self, server: str, group: dict[str, Any]) -> list[dict[str, Any]]:
        loop = asyncio.get_running_loop()
        call = _Call(group, loop.create_future())
        calls = self._calls.setdefault(server, [])
        calls.append(call)
        if len(calls) == 1:
            loop.call_soon(self._send, server)
        return await call.answer

    def _send(self, server: str) -> None:
        calls = [call for call in self._calls.pop(server) if not call.answer.done()]
        if not calls:
            return
        request = asyncio.create_task(self._request(server, calls))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

        def on_cancelled(answer: "asyncio.Future[list[dict[str, Any]]]") -> None:
            if answer.cancelled() and all(call.answer.done() for call in calls):
                request.cancel()

        for call in calls:
            call.answer.add_done_callback(on_cancelled)

    async def _request(self, server: str, calls: Sequence[_Call]) -> None:
        fault: Exception
        try:
            await self._stream(server, {call.group["id"]: call for call in calls})
            fault = Unreachable(server, "its answer ended before all groups were complete")
        except TimeoutError:
            fault = GenerationError(f"no answer within {self._timeout_s:g} s (rollout.request_timeout)")
        except aiohttp.ClientError as broken:
            fault = Unreachable(server, str(broken) or type(broken).__name__)
        except HttpError as refusal:
            fault = refusal
        except (ValueError, KeyError, TypeError) as misfit:
            fault = GenerationError(f"its answer cannot be read: {type(misfit).__name__}: {misfit}")
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(fault)

    async def _stream(self, server: str, calls: dict[str, _Call]) -> None:
        # With a deadline the server ends groups that are no longer awaited, even if it does not notice a lost client.
        groups = [{**call.group, "deadline_s": self._timeout_s} for call in calls.values()]
        body = orjson.dumps({"groups": groups, **self._options})
        limit = aiohttp.ClientTimeout(total=self._timeout_s)
        async with self._http.session.post(f"http://{server}/generate", data=body, timeout=limit) as response:
            if response.status >= 400:
                raise HttpError(response.status, error_message(await response.read()))
            parts: list[bytes] = []  # of an incomplete line: a large group comes in hundreds of chunks
            async for chunk in response.content.iter_any():
                first, *others = chunk.split(b"\n")
                parts.append(first)
                for start in others:
                    if line := b"".join(parts):
                        _deliver(orjson.loads(line), calls)
                    parts = [start]

    async def is_alive(self, server: str) -> bool:
        try:
            await self._http.json("GET", server, "/health", timeout_s=HEALTH_TIMEOUT_S)
        except HttpError:
            return True
        except Unreachable:
            return False
        return True


def _deliver(message: dict[str, Any], calls: dict[str, _Call]) -> None:
    call = calls.get(message["id"])
    if call is None or call.answer.done():
        return
    expected = call.group["n"]
    if "error" in message:
        call.answer.set_exception(GenerationError(str(message["error"])))
    elif len(message["samples"]) != expected:
        count = len(message["samples"])
        call.answer.set_exception(GenerationError(f"it returned {count} samples instead of {expected}"))
    else:
        call.answer.set_result(message["samples"])
