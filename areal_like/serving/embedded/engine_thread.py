"""The thread in which an engine runs. Others hand it commands, which it carries out between two steps."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeVar

from areal_like.serving.embedded.background_tasks import BackgroundTasks
from areal_like.serving.embedded.core.llm_engine import LLMEngine
from areal_like.serving.requests import FinishedGroup

T = TypeVar("T")

CONTROL = "told"
"""Whose pause it is that was asked for from outside."""

log = logging.getLogger(__name__)


class PauseCancelled(Exception):
    """A pause was taken back before it came to stand still."""


class EngineThread:
    """`on_finished` is called in the engine's thread, once a step at most; `on_broken` when the thread has died."""

    def __init__(
        self,
        engine: LLMEngine,
        on_finished: Callable[[list[FinishedGroup]], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.engine = engine
        self._beside = BackgroundTasks(engine)
        self._holders: set[str] = set()
        self._drained: list[Future[int]] = []
        self._stands_still = False
        self._on_finished, self._on_broken = on_finished, on_broken
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    @property
    def is_paused(self) -> bool:
        """Also while a pause waits for what runs."""
        return bool(self._holders)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._ends = True
            self._wake.notify()
        self._thread.join()

    def post(self, command: Callable[[], None]) -> None:
        """Carried out before the next step."""
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def call(self, command: Callable[[], T]) -> "Future[T]":
        """The same, with an answer."""
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

    def work(self, begin: Callable[[], Generator[None, None, T]]) -> "Future[T]":
        """The same for work in pieces that clients want: the run goes before it, and a pause stops it."""
        future: Future[T] = Future()
        self.post(lambda: self._beside.add(begin, future))
        return future

    def pause(self, mode: str = "keep", who: str = CONTROL) -> "Future[int]":
        """What runs stands still (`keep`); is waited for, and nothing else begins (`wait`); or gives its slots back and
        goes on later from the tokens that it has (`abort`). While paused, commands are carried out and nothing is
        generated. The answer comes when it stands still: how many sequences have begun and are not done. Where it goes
        on before that: Resumed. Several may want a pause at once, each under a name of its own."""
        self._holders.add(who)
        drained: Future[int] = Future()

        def begin() -> None:
            if mode == "wait":
                self.engine.admits = False
                self._drained.append(drained)
                return
            self._stands_still = True
            if mode == "abort":
                self.engine.set_aside()
            self._answer(drained)
            self._stand_still()

        self.post(begin)
        return drained

    def resume(self, who: str = CONTROL) -> None:
        """Goes on, whatever mode it was paused in, unless somebody else wants it paused."""
        self._holders.discard(who)
        if self._holders:
            return

        def go_on() -> None:
            self._stands_still, self.engine.admits = False, True
            waiting, self._drained = self._drained, []
            for future in (one for one in waiting if not one.done()):
                future.set_exception(PauseCancelled("resumed while what runs was waited for; pause again"))

        self.post(go_on)

    def _stand_still(self) -> None:
        """Answers pauses that wait: also because another one stopped what they wait for."""
        self._stands_still = True
        waiting, self._drained = self._drained, []
        for future in waiting:
            self._answer(future)

    def _answer(self, future: "Future[int]") -> None:
        if not future.done():
            future.set_result(self.engine.num_begun)

    def _main(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as fault:
            log.exception("the engine has failed")
            self._on_broken(fault)

    def _turn(self) -> bool:
        with self._wake:
            while not (self._ends or self._commands or self._goes_on or self._until_late() <= 0):
                late = self._until_late()
                self._wake.wait(None if late == math.inf else min(late, threading.TIMEOUT_MAX))
            if self._ends:
                return False
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
        self.engine.expire()
        if self._drained and not self.engine.num_begun:
            self._stand_still()
        stops = self._stands_still or not self.engine.has_work
        finished = self.engine.take_finished() if stops else self.engine.step()
        if finished:
            self._on_finished(finished)
        if self._goes_on_beside:
            self._beside.go_on()
        return True

    @property
    def _goes_on(self) -> bool:
        generates = self.engine.has_work and not self._stands_still
        return bool(self._drained) or generates or self._goes_on_beside

    @property
    def _goes_on_beside(self) -> bool:
        return not self.is_paused and self._beside.may_go_on

    def _until_late(self) -> float:
        """Seconds until a group's time is over."""
        return self.engine.next_deadline - time.monotonic()
