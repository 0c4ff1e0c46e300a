"""The engine's thread for the event loop: groups in, finished groups out."""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from areal_like.process.errors import Failure
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.engine_thread import EngineThread
from areal_like.serving.requests import BadRequest, FinishedGroup, GroupRequest

T = TypeVar("T")
Result = asyncio.Future[FinishedGroup]

log = logging.getLogger(__name__)


class AsyncLLMEngine:
    """Must be made in the event loop that uses it. Belongs to that loop's thread, except for what it posts to the
    engine's. `broken` has the exception with which the engine's thread has ended."""

    def __init__(self, engine: LLMEngine) -> None:
        self.thread = EngineThread(engine, self._on_finished, self._on_broken)
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[Failure] = self._loop.create_future()
        self._new: list[tuple[GroupRequest, Result]] = []
        self._loading: asyncio.Task[Any] | None = None
        """Of the tokenizer, which stop texts need; in a thread."""
        self._cancelled: list[Result] = []
        self._results: dict[int, Result] = {}
        """By the engine's number of the group. Belongs to the engine's thread, as `_numbers` does."""
        self._numbers: dict[Result, int] = {}

    async def call(self, command: Callable[[], T]) -> T:
        """Carries out a command in the engine's thread, between two steps."""
        return await asyncio.wrap_future(self.thread.call(command))

    def run_in_background(self, begin: Callable[[], Generator[None, None, T]]) -> "asyncio.Future[T]":
        """Does work in parts in the engine's thread, after the run. Cancelling the future ends it."""
        return asyncio.wrap_future(self.thread.run_in_background(begin))

    async def generate(self, group: GroupRequest) -> FinishedGroup:
        """All groups of one iteration of the event loop reach the engine in one command, in their order. A group whose
        task is cancelled is aborted."""
        result: Result = self._loop.create_future()
        if not self._new:
            self._loop.call_soon(self._post_new)
        self._new.append((group, result))
        try:
            return await result
        except asyncio.CancelledError:
            if not self._cancelled:
                self._loop.call_soon(self._post_cancelled)
            self._cancelled.append(result)
            raise

    def _post_new(self) -> None:
        if self._loading is None and any(group.sampling.stop for group, _ in self._new):
            self._loading = asyncio.create_task(asyncio.to_thread(self.engine.tokenizer.get))
            self._loading.add_done_callback(self._on_loaded)
        else:
            self._post()

    def _on_loaded(self, loading: "asyncio.Task[Any]") -> None:
        """All groups that came meanwhile follow in their order."""
        if not loading.cancelled():
            loading.exception()  # a missing tokenizer is reported for each group when it is submitted
            self._post()

    def _post(self) -> None:
        new, self._new = [one for one in self._new if not one[1].done()], []
        self.thread.post(lambda: self._submit(new))

    def _post_cancelled(self) -> None:
        cancelled, self._cancelled = self._cancelled, []
        self.thread.post(lambda: self._abort(cancelled))

    def _submit(self, new: Sequence[tuple[GroupRequest, Result]]) -> None:
        refused = []
        for group, result in new:
            try:
                number = self.engine.submit(group)
            except BadRequest as bad:
                refused.append((result, FinishedGroup(-1, group.id, [], str(bad))))
            except Exception as fault:  # other groups go on
                log.exception("group %r", group.id)
                refused.append((result, FinishedGroup(-1, group.id, [], f"{type(fault).__name__}: {fault}")))
            else:
                self._results[number], self._numbers[result] = result, number
        if refused:
            self._loop.call_soon_threadsafe(_deliver, refused)

    def _abort(self, cancelled: Sequence[Result]) -> None:
        numbers = {self._numbers[result] for result in cancelled if result in self._numbers}
        if numbers:
            self.engine.abort("aborted", lambda queued: queued.number in numbers)

    def _on_finished(self, finished: list[FinishedGroup]) -> None:
        results = [(self._results.pop(one.number), one) for one in finished]
        for result, _ in results:
            del self._numbers[result]
        self._loop.call_soon_threadsafe(_deliver, results)

    def _on_broken(self, fault: BaseException) -> None:
        self._loop.call_soon_threadsafe(self.broken.set_exception, fault)


def _deliver(results: Sequence[tuple[Result, FinishedGroup]]) -> None:
    for result, finished in results:
        if not result.done():
            result.set_result(finished)
