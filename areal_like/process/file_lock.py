"""Waits for another process's lock on a file, so that the launcher sees a wait and no hang."""

import fcntl
import time
from typing import IO, Any

from areal_like.process.wait import NamedWait

LIMIT_S, LIMIT_KEY = 86400.0, "a fixed limit"
"""The holder may download for hours; it is the holder whose progress is watched."""
FIRST_POLL_S, POLL_S = 0.01, 0.5


def lock(file: IO[Any], what: str) -> None:
    """Exclusively, until the file is closed. `what`: for what this process waits where another one has the lock."""
    wait, poll_s = NamedWait(what, LIMIT_S, LIMIT_KEY), FIRST_POLL_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            wait.check()
            time.sleep(poll_s)
            poll_s = min(2 * poll_s, POLL_S)
