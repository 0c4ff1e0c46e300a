"""The thread in which an engine runs. Others hand it commands, which it carries out between two steps."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from areal_like.serving.embedded.engine import Engine
from areal_like.serving.embedded.request import Finished

T = TypeVar("T")

log = logging.getLogger(__name__)


class Driver:
    """`on_finished` is called in the engine's thread, once a step at most; `on_broken` when the thread has died."""

    def __init__(
        self,
        engine: Engine,
        on_finished: Callable[[list[Finished]], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.engine = engine
        self.is_paused = False
        self._on_finished, self._on_broken = on_finished, on_broken
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

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

    def pause(self, is_paused: bool) -> None:
        """While paused, commands are carried out and nothing is generated."""
        with self._wake:
            self.is_paused = is_paused
            self._wake.notify()

    def _main(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as fault:
            log.exception("the engine has failed")
            self._on_broken(fault)

    def _turn(self) -> bool:
        with self._wake:
            while not (self._ends or self._commands or (self.engine.has_work and not self.is_paused)):
                self._wake.wait()
            if self._ends:
                return False
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
        finished = self.engine.take_finished() if self.is_paused else self.engine.step()
        if finished:
            self._on_finished(finished)
        return True
