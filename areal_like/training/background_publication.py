"""Completes publications of weights in a thread beside training: one at a time, in the order of their versions."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from areal_like.process import pulse
from areal_like.process.wait import NamedWait

CHECK_INTERVAL_S = 1.0
KEY = "rollout.request_timeout"


class BackgroundPublication:
    """An error of the thread is raised by the next call of the trainer. `limit_s` is the limit for one publication."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._thread: ThreadPoolExecutor | None = None
        self._current: Future[None] | None = None
        self._version = 0

    def start(self, version: int, complete: Callable[[], None]) -> None:
        self.wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights: publish")
        self._version, self._current = version, self._thread.submit(_published, complete)

    def check(self) -> None:
        if self._current is not None and self._current.done():
            self._current.result()

    def is_done(self, wait_s: float) -> bool:
        """Waits for so long at most."""
        return self._current is None or not wait([self._current], wait_s).not_done

    def wait(self) -> None:
        if self._current is None:
            return
        waiting = NamedWait(f"weights v{self._version} to be published", self._limit_s, KEY)
        while wait([self._current], CHECK_INTERVAL_S).not_done:
            waiting.check()
        self._current.result()


def _published(complete: Callable[[], None]) -> None:
    with pulse.phase(pulse.PUBLISHING):
        complete()
