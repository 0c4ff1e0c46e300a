"""Thread that sends to one tracker."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from areal_like.observe.trackers.base import Tracker

MAX_ERROR_CHARS = 300
MAX_PENDING = 1000
"""Maximum of queued entries: those of a few hundred steps."""

Work = Callable[[Tracker], None]

log = logging.getLogger(__name__)


class TrackerThread(threading.Thread):
    """Opens a tracker and runs its queued work in order. After a failure it accepts no more. If the tracker hangs, at
    most MAX_PENDING entries are queued; further ones are dropped."""

    def __init__(self, name: str, make: Callable[[], Tracker], warn: Callable[[str], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._make, self._warn = make, warn
        self._work: deque[Work] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._has_warned = False
        self.start()

    def put(self, work: Work) -> None:
        """Queues work; never blocks."""
        with self._changed:
            if not self.is_alive():
                return
            if len(self._work) < MAX_PENDING:
                self._work.append(work)
                self._changed.notify()
                return
        self._warn_once(f"is {MAX_PENDING} entries behind; new entries are dropped until it catches up")

    def end(self) -> None:
        """No further work will be queued."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def abandon(self, why: str) -> None:
        """Drops the queued work, with a warning."""
        with self._changed:
            self._work.clear()
        self._warn_once(why)

    def run(self) -> None:
        try:
            tracker = self._make()
            while (work := self._next()) is not None:
                work(tracker)
            tracker.close()
        except Exception as error:  # no error of a tracker's package may stop training
            log.debug("tracker %s ended", self.name, exc_info=True)
            with self._changed:
                self._work.clear()
            text = " ".join(str(error).split())[:MAX_ERROR_CHARS] or type(error).__name__
            self._warn(f"stats_logger.{self.name}: {text}; the run continues without it")

    def _next(self) -> Work | None:
        with self._changed:
            self._changed.wait_for(lambda: self._work or self._ending)
            return self._work.popleft() if self._work else None

    def _warn_once(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"stats_logger.{self.name}: {text}; metrics.jsonl has everything")
