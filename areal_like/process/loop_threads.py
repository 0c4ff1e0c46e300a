"""The threads of an event loop, in which blocking calls run."""

import concurrent.futures
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

END_S = 10.0
"""For calls that still run when their loop ends."""

P = ParamSpec("P")
T = TypeVar("T")


class Threads(ThreadPoolExecutor):
    """Code of users may hang in them: their end is not waited for without a limit, as asyncio does by default."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self._running: set[Future[Any]] = set()

    def submit(self, call: Callable[P, T], /, *args: P.args, **more: P.kwargs) -> Future[T]:
        future = super().submit(call, *args, **more)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        if wait:
            concurrent.futures.wait(list(self._running), END_S)
