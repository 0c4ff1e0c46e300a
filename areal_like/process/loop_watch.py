"""Watches the event loop of a process from a fork of it: what blocks the loop may hold the interpreter's lock too."""

import asyncio
import logging
import os
import select
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from areal_like.process.process_tree import die_with_parent, process_info, set_process_name

MAX_BEAT_S = 1.0
WINDOWS = 4
"""The watcher looks so often within the limit, to see whether the process was stopped meanwhile."""
CLOSE_TIMEOUT_S, PAUSE_S = 60.0, 0.005
"""The watcher ends by itself, unless it is stopped by a signal. It may be writing its report."""
STOPPED = ("T", "t")
"""States of a process that a signal or a debugger has stopped."""

log = logging.getLogger(__name__)


class LoopWatch:
    """Kills this process if its event loop does not run for `limit_s` seconds. `report` is called before, in the fork,
    with the id of this process. Must be created before any thread is started."""

    def __init__(self, limit_s: float, report: Callable[[int], None]) -> None:
        self._limit_s = limit_s
        beats, self._beats = os.pipe()
        watched = os.getpid()
        self._watcher = os.fork()
        if self._watcher == 0:
            os.close(self._beats)
            _watch(watched, beats, limit_s, report)
        os.close(beats)
        os.set_blocking(self._beats, False)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watches the running loop inside of it."""
        beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        while True:
            with suppress(OSError):  # the watcher was killed
                os.write(self._beats, b".")
            await asyncio.sleep(min(MAX_BEAT_S, self._limit_s / 10))

    def close(self) -> None:
        os.close(self._beats)
        began = time.monotonic()
        while not os.waitpid(self._watcher, os.WNOHANG)[0]:
            waited_s = time.monotonic() - began
            if waited_s > 2 * CLOSE_TIMEOUT_S:
                log.warning("the watcher of the event loop (process %d) cannot be ended", self._watcher)
                return
            if waited_s > CLOSE_TIMEOUT_S:
                os.kill(self._watcher, signal.SIGKILL)
            time.sleep(PAUSE_S)


def _watch(watched: int, beats: int, limit_s: float, report: Callable[[int], None]) -> None:
    try:
        die_with_parent()
        set_process_name("areal loop watch")
        os.read(beats, 1)  # it is watched from the first beat on
        silent = 0
        while silent < WINDOWS:
            process = process_info(watched)
            if process is None or process.state in STOPPED:
                silent = 0
            if not select.select([beats], [], [], limit_s / WINDOWS)[0]:
                silent += 1
            elif os.read(beats, 4096):
                silent = 0
            else:
                return
        report(watched)
        os.kill(watched, signal.SIGKILL)
    finally:
        os._exit(0)
