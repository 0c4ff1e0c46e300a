"""Passes on what a reward prints, without secrets, and drops what is too much for a log."""

import os
import threading
import time
from collections.abc import Iterator

from areal_like.process.scrubbed_output import ScrubbedBytes

BURST_BYTES = 256 * 1024
BYTES_PER_S = 1024
CHUNK_BYTES = 1 << 16
DRAIN_TIMEOUT_S = 1.0


class BoundedOutput:
    """Copies a pipe to standard error in a thread: BURST_BYTES at once, and BYTES_PER_S over time. The rest is read and
    dropped, so that a reward that prints much is not blocked."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._thread = threading.Thread(target=self._copy, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Waits until all is passed on; every process that writes must have ended."""
        self._thread.join(DRAIN_TIMEOUT_S)

    def _copy(self) -> None:
        left, since, is_dropping = float(BURST_BYTES), time.monotonic(), False
        for output in self._read():
            now = time.monotonic()
            left, since = min(BURST_BYTES, left + (now - since) * BYTES_PER_S), now
            passed = output[: int(left)]
            left -= len(passed)
            if passed:
                os.write(2, passed)
            if len(passed) < len(output) and not is_dropping:
                os.write(2, b"\n[a reward prints too much; the rest is dropped]\n")
            is_dropping = len(passed) < len(output)

    def _read(self) -> Iterator[bytes]:
        scrubber = ScrubbedBytes()
        while output := os.read(self._pipe, CHUNK_BYTES):
            yield scrubber.read(output)
        yield scrubber.rest()
