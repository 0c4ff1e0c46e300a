"""Background tasks for clients, such as scoring a prompt: done in parts between the steps of the engine."""

import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

from areal_like.serving.client_queue import CLIENT_SHARE
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine

StepwiseWork = Generator[None, None, Any]


class BackgroundTasks:
    """One task at a time, one part between two steps. While anything is generated, parts have a share of the time, and
    none while a group of the run waits for its start or a synchronous step has the engine. Belongs to the engine's
    thread."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._waiting: deque[tuple[Callable[[], StepwiseWork], Future[Any]]] = deque()
        self._current: tuple[StepwiseWork, Future[Any]] | None = None
        self.due_at_s = 0.0
        """When the next part is due, in busy seconds of the engine."""

    def add(self, begin: Callable[[], StepwiseWork], future: "Future[Any]") -> None:
        """`begin` is called at its turn. Cancelling the future ends the task after a part."""
        self._waiting.append((begin, future))

    @property
    def is_due(self) -> bool:
        if self._current is None and not self._waiting:
            return False
        engine = self._engine
        return not engine.has_work or (not engine.run_has_priority and engine.counts.busy_s >= self.due_at_s)

    def run_part(self) -> None:
        began = time.perf_counter()
        while self._current is None or self._current[1].cancelled():
            self._current = None
            if not self._waiting:
                return
            begin, future = self._waiting.popleft()
            if not future.cancelled():
                self._begin(begin, future)
        work, future = self._current
        try:
            next(work)
        except StopIteration as end:
            self._current = None
            if future.set_running_or_notify_cancel():
                future.set_result(end.value)
        except Exception as fault:
            self._current = None
            if future.set_running_or_notify_cancel():
                future.set_exception(fault)
        self.due_at_s = self._engine.counts.busy_s + (CLIENT_SHARE - 1) * (time.perf_counter() - began)

    def _begin(self, begin: Callable[[], StepwiseWork], future: "Future[Any]") -> None:
        try:
            self._current = begin(), future
        except Exception as fault:
            if future.set_running_or_notify_cancel():
                future.set_exception(fault)
