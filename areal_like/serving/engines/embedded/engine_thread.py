"""Thread in which the LLM engine runs, and the asyncio interface to it."""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import web

from areal_like.serving.client_queue import RUN_ACTIVE_S
from areal_like.serving.engines.base import PauseCancelled
from areal_like.serving.engines.embedded.background_tasks import BackgroundTasks
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.requests import BadRequest, FinishedGroup, GroupRequest

T = TypeVar("T")

CONTROL = "control"
"""Pause owner: a call of the control routes."""
DISCONNECT_CHECK_S = 0.25

log = logging.getLogger(__name__)


class EngineThread:
    """Carries out commands between two steps of the engine. `on_finished` is called in this thread, at most once per
    step; `on_broken` when the thread has failed."""

    def __init__(
        self,
        engine: LLMEngine,
        on_finished: Callable[[list[FinishedGroup]], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.engine = engine
        self.background = BackgroundTasks(engine)
        self._pause_owners: set[str] = set()
        self._pauses: list[Future[int]] = []
        """Pauses that wait for running sequences to end."""
        self._is_stopped = False
        self._on_finished, self._on_broken = on_finished, on_broken
        self._commands: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    @property
    def is_paused(self) -> bool:
        """Also while a pause waits for running sequences."""
        return bool(self._pause_owners)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join()

    def post(self, command: Callable[[], None]) -> None:
        """Carries out a command before the next step."""
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    def call(self, command: Callable[[], T]) -> "Future[T]":
        """Carries out a command before the next step, and returns its result."""
        future: Future[T] = Future()

        def carry_out() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = command()
            except Exception as fault:
                future.set_exception(fault)
            else:
                future.set_result(result)

        self.post(carry_out)
        return future

    def run_in_background(self, begin: Callable[[], Generator[None, None, T]]) -> "Future[T]":
        """Does a client's work in parts between steps; the run has priority, and a pause stops it."""
        future: Future[T] = Future()
        self.post(lambda: self.background.add(begin, future))
        return future

    def pause(self, mode: str = "keep", owner: str = CONTROL) -> "Future[int]":
        """Stops generation. Running sequences stop where they are (`keep`), run to their end while no other starts
        (`wait`), or are preempted and resume later (`abort`). Commands are still carried out. The result is the number
        of unfinished sequences once the engine has stopped; PauseCancelled if it is resumed before. Each owner has its
        own pause."""
        self._pause_owners.add(owner)
        pause: Future[int] = Future()

        def begin() -> None:
            if mode == "wait":
                self.engine.starts_groups = False
                self._pauses.append(pause)
                return
            self._is_stopped = True
            if mode == "abort":
                self.engine.preempt_all()
            self._complete(pause)
            self._stop_generation()

        self.post(begin)
        return pause

    def resume(self, owner: str = CONTROL) -> None:
        """Ends the owner's pause, whatever its mode; generation goes on when no other owner has one."""
        self._pause_owners.discard(owner)
        if self._pause_owners:
            return

        def go_on() -> None:
            self._is_stopped, self.engine.starts_groups = False, True
            waiting, self._pauses = self._pauses, []
            for pause in (one for one in waiting if not one.done()):
                pause.set_exception(PauseCancelled("resumed while the pause waited for running requests; pause again"))

        self.post(go_on)

    def _stop_generation(self) -> None:
        """Completes all pauses, also those whose running sequences another pause has stopped."""
        self._is_stopped = True
        waiting, self._pauses = self._pauses, []
        for pause in waiting:
            self._complete(pause)

    def _complete(self, pause: "Future[int]") -> None:
        if not pause.done():
            pause.set_result(self.engine.num_started)

    def _main(self) -> None:
        try:
            while self._iterate():
                pass
        except BaseException as fault:
            log.exception("the engine has failed")
            self._on_broken(fault)

    def _iterate(self) -> bool:
        with self._changed:
            while not (self._ends or self._commands or self._has_work or self._until_deadline() <= 0):
                seconds = self._until_deadline()
                self._changed.wait(None if seconds == math.inf else min(seconds, threading.TIMEOUT_MAX))
            if self._ends:
                return False
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
        self.engine.expire()
        if self._pauses and not self.engine.num_started:
            self._stop_generation()
        is_idle = self._is_stopped or not self.engine.has_work
        finished = self.engine.take_finished() if is_idle else self.engine.step()
        if finished:
            self._on_finished(finished)
        if self._background_is_due:
            self.background.run_part()
        return True

    @property
    def _has_work(self) -> bool:
        generates = self.engine.has_work and not self._is_stopped
        return bool(self._pauses) or generates or self._background_is_due

    @property
    def _background_is_due(self) -> bool:
        return not self.is_paused and self.background.is_due

    def _until_deadline(self) -> float:
        """Seconds until the next deadline of a group."""
        return self.engine.next_deadline - time.monotonic()


@dataclass(eq=False)
class RequestStream:
    """The groups of one request. `numbers`: of its groups in the engine."""

    attempt: int | None
    numbers: set[int] = field(default_factory=set)
    finished: asyncio.Queue[FinishedGroup] = field(default_factory=asyncio.Queue)


class AsyncLLMEngine:
    """The engine for HTTP handlers. Belongs to the event loop's thread, except for what it posts to the engine's."""

    def __init__(self, engine: LLMEngine) -> None:
        self.thread = EngineThread(engine, self._on_finished, self._on_broken)
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, RequestStream] = {}
        self._attempt = 0
        self._last_run_request = -math.inf

    @property
    def is_used_by_run(self) -> bool:
        """Whether a run has sent a request recently."""
        return time.monotonic() - self._last_run_request < RUN_ACTIVE_S

    async def call(self, command: Callable[[], T]) -> T:
        """Carries out a command in the engine's thread, between two steps."""
        return await asyncio.wrap_future(self.thread.call(command))

    async def run_in_background(self, request: web.Request, begin: Callable[[], Generator[None, None, T]]) -> T:
        """Does work in parts in the engine's thread, after the run. If the client disconnects, ends it and raises
        ConnectionError."""
        future = asyncio.wrap_future(self.thread.run_in_background(begin))
        try:
            while not future.done():
                await asyncio.wait([future], timeout=DISCONNECT_CHECK_S)
                if not future.done() and is_disconnected(request):
                    raise ConnectionResetError("the client has disconnected")
            return future.result()
        finally:
            future.cancel()

    async def generate(
        self, request: web.Request, groups: Sequence[GroupRequest], attempt: int | None = None
    ) -> AsyncGenerator[list[FinishedGroup], None]:
        """Yields groups as they finish. If the client disconnects, ends them and raises ConnectionError. `attempt`: of
        the run that calls; None for other clients."""
        if attempt is not None:
            self._last_run_request = time.monotonic()
        stream = RequestStream(attempt)
        self.thread.post(lambda: self._submit(stream, groups))
        missing = len(groups)
        try:
            while missing:
                try:
                    finished = [await asyncio.wait_for(stream.finished.get(), DISCONNECT_CHECK_S)]
                except TimeoutError:
                    if is_disconnected(request):
                        raise ConnectionResetError("the client has disconnected") from None
                    continue
                while not stream.finished.empty():
                    finished.append(stream.finished.get_nowait())
                missing -= len(finished)
                yield finished
        finally:
            if missing:
                self.thread.post(lambda: self._abort(stream, "aborted: the client has disconnected"))

    def abort_older(self, attempt: int) -> None:
        """Ends requests of earlier attempts of the run."""
        self.thread.post(lambda: self._abort_older(attempt))

    def _abort_older(self, attempt: int) -> None:
        self._attempt = attempt
        for stream in set(list(self._streams.values())):
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
                number = self.thread.engine.submit(group)
            except BadRequest as bad:
                refused.append(FinishedGroup(-1, group.id, [], str(bad)))
            except Exception as fault:  # other groups go on
                log.exception("group %r", group.id)
                refused.append(FinishedGroup(-1, group.id, [], f"{type(fault).__name__}: {fault}"))
            else:
                stream.numbers.add(number)
                self._streams[number] = stream
        if refused:
            self._loop.call_soon_threadsafe(self._deliver, stream, refused)

    def _abort(self, stream: RequestStream, reason: str) -> None:
        self.thread.engine.abort(reason, lambda queued: queued.number in stream.numbers)

    def _on_finished(self, finished: list[FinishedGroup]) -> None:
        self._loop.call_soon_threadsafe(self._deliver_finished, finished)

    def _deliver_finished(self, finished: list[FinishedGroup]) -> None:
        for one in finished:
            self._deliver(self._streams.pop(one.number), [one])

    def _deliver(self, stream: RequestStream, finished: list[FinishedGroup]) -> None:
        for one in finished:
            stream.finished.put_nowait(one)

    def _on_broken(self, fault: BaseException) -> None:
        self._loop.call_soon_threadsafe(self.fail, fault)

    def fail(self, fault: BaseException) -> None:
        """Ends the process for this reason, unless there was another before."""
        if not self.broken.done():
            self.broken.set_exception(fault)


def is_disconnected(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()
