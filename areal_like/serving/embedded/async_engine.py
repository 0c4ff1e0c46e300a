"""From an HTTP request to the engine's thread and back: what was asked for and what is finished of it."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import web

from areal_like.serving.client_queue import RUN_ACTIVE_S
from areal_like.serving.embedded.core.llm_engine import LLMEngine
from areal_like.serving.embedded.engine_thread import EngineThread
from areal_like.serving.requests import BadRequest, FinishedGroup, GroupRequest

T = TypeVar("T")

log = logging.getLogger(__name__)

DISCONNECT_CHECK_S = 0.25
"""How often it is looked whether a client that waits is still there."""


@dataclass(eq=False)
class RequestStream:
    """The groups of one request. `tickets`: those that are in the engine."""

    attempt: int | None
    tickets: set[int] = field(default_factory=set)
    finished: asyncio.Queue[FinishedGroup] = field(default_factory=asyncio.Queue)


class AsyncLLMEngine:
    """Belongs to the event loop's thread, but for what it posts to the engine's."""

    def __init__(self, engine: LLMEngine) -> None:
        self.driver = EngineThread(engine, self._on_finished, self._on_broken)
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._of_ticket: dict[int, RequestStream] = {}
        self._attempt = 0
        self._last_of_run = -math.inf

    @property
    def is_used_by_run(self) -> bool:
        """Whether one has asked for something lately."""
        return time.monotonic() - self._last_of_run < RUN_ACTIVE_S

    async def call(self, command: Callable[[], T]) -> T:
        """Has the engine's thread carry something out between two steps."""
        return await asyncio.wrap_future(self.driver.call(command))

    async def work(self, request: web.Request, begin: Callable[[], Generator[None, None, T]]) -> T:
        """Has the engine's thread work in pieces, after the run. Where the client goes away, the work ends and a
        ConnectionError is raised."""
        future = asyncio.wrap_future(self.driver.work(begin))
        try:
            while not future.done():
                await asyncio.wait([future], timeout=DISCONNECT_CHECK_S)
                if not future.done() and (request.transport is None or request.transport.is_closing()):
                    raise ConnectionResetError("the client is gone")
            return future.result()
        finally:
            future.cancel()

    async def run(
        self, request: web.Request, groups: Sequence[GroupRequest], attempt: int | None = None
    ) -> AsyncGenerator[list[FinishedGroup], None]:
        """What is finished, as it comes. Where the client goes away, its groups end and a ConnectionError is raised.
        `attempt`: that of the run that asks; None is somebody else."""
        if attempt is not None:
            self._last_of_run = time.monotonic()
        stream = RequestStream(attempt)
        self.driver.post(lambda: self._submit(stream, groups))
        missing = len(groups)
        try:
            while missing:
                try:
                    finished = [await asyncio.wait_for(stream.finished.get(), DISCONNECT_CHECK_S)]
                except TimeoutError:
                    if request.transport is None or request.transport.is_closing():
                        raise ConnectionResetError("the client is gone") from None
                    continue
                while not stream.finished.empty():
                    finished.append(stream.finished.get_nowait())
                missing -= len(finished)
                yield finished
        finally:
            if missing:
                self.driver.post(lambda: self._abort(stream, "aborted: the client is gone"))

    def abort_older(self, attempt: int) -> None:
        """Ends what earlier attempts of the run asked for."""
        self.driver.post(lambda: self._abort_older(attempt))

    def _abort_older(self, attempt: int) -> None:
        self._attempt = attempt
        for stream in set(list(self._of_ticket.values())):
            if stream.attempt is not None and stream.attempt < attempt:
                self._abort(stream, f"aborted: {self._too_old(stream)}")

    def _too_old(self, stream: RequestStream) -> str:
        return f"this is of attempt {stream.attempt}, and the run is at attempt {self._attempt}"

    def _submit(self, stream: RequestStream, groups: Sequence[GroupRequest]) -> None:
        refused = []
        for group in groups:
            try:
                if stream.attempt is not None and stream.attempt < self._attempt:
                    raise BadRequest(self._too_old(stream))
                ticket = self.driver.engine.submit(group)
            except BadRequest as bad:
                refused.append(FinishedGroup(-1, group.id, [], str(bad)))
            except Exception as fault:  # it harms nobody but this group
                log.exception("group %r", group.id)
                refused.append(FinishedGroup(-1, group.id, [], f"{type(fault).__name__}: {fault}"))
            else:
                stream.tickets.add(ticket)
                self._of_ticket[ticket] = stream
        if refused:
            self._loop.call_soon_threadsafe(self._hand_out, stream, refused)

    def _abort(self, stream: RequestStream, reason: str) -> None:
        self.driver.engine.abort(reason, lambda ticket: ticket.number in stream.tickets)

    def _on_finished(self, finished: list[FinishedGroup]) -> None:
        self._loop.call_soon_threadsafe(self._deliver, finished)

    def _deliver(self, finished: list[FinishedGroup]) -> None:
        for one in finished:
            self._hand_out(self._of_ticket.pop(one.ticket), [one])

    def _hand_out(self, stream: RequestStream, finished: list[FinishedGroup]) -> None:
        for one in finished:
            stream.finished.put_nowait(one)

    def _on_broken(self, fault: BaseException) -> None:
        self._loop.call_soon_threadsafe(self.broken.set_exception, fault)
