"""Work for clients that is no generation, done in pieces between the steps of the engine."""

import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

from areal_like.serving.client_queue import CLIENT_SHARE
from areal_like.serving.embedded.core.llm_engine import LLMEngine

StepwiseWork = Generator[None, None, Any]


class BackgroundTasks:
    """One piece at a time, then a step. While anything is generated, pieces have a share of the time, and none while a
    group of the run waits to begin or a synchronous step has the engine. Belongs to the engine's thread."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._waiting: deque[tuple[Callable[[], StepwiseWork], Future[Any]]] = deque()
        self._current: tuple[StepwiseWork, Future[Any]] | None = None
        self._again_at = 0.0
        """When the next piece may be computed, in seconds that the engine was busy with steps."""

    def add(self, begin: Callable[[], StepwiseWork], future: "Future[Any]") -> None:
        """`begin` is called when it is its turn. A future that is cancelled ends the work after a piece."""
        self._waiting.append((begin, future))

    @property
    def may_go_on(self) -> bool:
        if self._current is None and not self._waiting:
            return False
        engine = self._engine
        return not engine.has_work or (not engine.is_wanted_by_the_run and engine.counts.busy_s >= self._again_at)

    def go_on(self) -> None:
        """Computes a piece."""
        began = time.perf_counter()
        while self._current is None or self._current[1].cancelled():
            self._current = None
            if not self._waiting:
                return
            begin, future = self._waiting.popleft()
            if not future.cancelled():
                self._begin(begin, future)
        pieces, future = self._current
        try:
            next(pieces)
        except StopIteration as end:
            self._current = None
            if future.set_running_or_notify_cancel():
                future.set_result(end.value)
        except Exception as fault:
            self._current = None
            if future.set_running_or_notify_cancel():
                future.set_exception(fault)
        self._again_at = self._engine.counts.busy_s + (CLIENT_SHARE - 1) * (time.perf_counter() - began)

    def _begin(self, begin: Callable[[], StepwiseWork], future: "Future[Any]") -> None:
        try:
            self._current = begin(), future
        except Exception as fault:
            if future.set_running_or_notify_cancel():
                future.set_exception(fault)
