"""Thread in which the LLM engine runs."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeVar

from areal_like.process import pulse
from areal_like.serving.engines.base import PauseCancelled
from areal_like.serving.engines.embedded.background_tasks import BackgroundTasks
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.requests import FinishedGroup

T = TypeVar("T")

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
        self.is_paused = False
        """Also while a pause waits for running sequences."""
        self._pauses: list[Future[int]] = []
        """Pauses that wait for running sequences to end."""
        self._is_stopped = False
        self._on_finished, self._on_broken = on_finished, on_broken
        self._commands: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

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

    def pause(self, mode: str) -> "Future[int]":
        """Stops generation. Running sequences stop where they are (`keep`), run to their end while no other starts
        (`wait`), or are preempted and resume later (`abort`). Commands are still carried out. The result is the number
        of unfinished sequences once the engine has stopped; PauseCancelled if it is resumed before."""
        self.is_paused = True
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

    def resume(self) -> None:
        """Ends all pauses, whatever their modes."""
        self.is_paused = False

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
            with pulse.phase(pulse.GENERATING):
                while self._iterate():
                    pulse.advance()
        except BaseException as fault:
            log.exception("the engine has failed")
            self._on_broken(fault)

    def _iterate(self) -> bool:
        with self._changed:
            while not (self._ends or self._commands or self._has_work):
                with pulse.phase(pulse.IDLE):
                    self._changed.wait()
            if self._ends:
                return False
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
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
