"""One tracker in its thread."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from areal_like.observe.trackers.base import Tracker

MAX_ERROR_CHARS = 300
MAX_PENDING = 1000
"""Entries that a tracker may be behind; those of a few hundred steps."""

Work = Callable[[Tracker], None]

log = logging.getLogger(__name__)


class TrackerThread(threading.Thread):
    """Opens a tracker and gives it its work in order, until the end. After a failure it takes no more. One that hangs
    gets no more than MOST_WAITING entries to catch up on: what comes then is left out."""

    def __init__(self, name: str, make: Callable[[], Tracker], say: Callable[[str], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._make, self._say = make, say
        self._work: deque[Work] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._has_warned = False
        self.start()

    def put(self, work: Work) -> None:
        """Never waits."""
        with self._changed:
            if not self.is_alive():
                return
            if len(self._work) < MAX_PENDING:
                self._work.append(work)
                self._changed.notify()
                return
        self._warn(f"is {MAX_PENDING} entries behind; what comes until it catches up is not sent")

    def end(self) -> None:
        """There is no further work."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def abandon(self, why: str) -> None:
        """Nobody waits for it any longer."""
        with self._changed:
            self._work.clear()
        self._warn(why)

    def run(self) -> None:
        try:
            tracker = self._make()
            while (work := self._next()) is not None:
                work(tracker)
            tracker.close()
        except Exception as error:  # whatever a tracker's package raises: it is no reason to stop training
            log.debug("tracker %s ended", self.name, exc_info=True)
            with self._changed:
                self._work.clear()
            text = " ".join(str(error).split())[:MAX_ERROR_CHARS] or type(error).__name__
            self._say(f"stats_logger.{self.name}: {text}; the run goes on without it")

    def _next(self) -> Work | None:
        with self._changed:
            self._changed.wait_for(lambda: self._work or self._ending)
            return self._work.popleft() if self._work else None

    def _warn(self, text: str) -> None:
        """Once."""
        if not self._has_warned:
            self._has_warned = True
            self._say(f"stats_logger.{self.name}: {text}; metrics.jsonl has everything")
