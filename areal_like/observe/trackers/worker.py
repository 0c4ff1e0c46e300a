"""One tracker in its thread."""

import logging
import queue
import threading
from collections.abc import Callable

from areal_like.observe.trackers.base import Tracker

LONGEST_WORD = 300

Work = Callable[[Tracker], None]

log = logging.getLogger(__name__)


class Worker(threading.Thread):
    """Opens a tracker and gives it its work in order, until None is put. After a failure it takes no more."""

    def __init__(self, name: str, make: Callable[[], Tracker], say: Callable[[str], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._make, self._say = make, say
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self.start()

    def put(self, work: Work | None) -> None:
        if self.is_alive():
            self._work.put(work)

    def run(self) -> None:
        try:
            tracker = self._make()
            while (work := self._work.get()) is not None:
                work(tracker)
            tracker.close()
        except Exception as error:  # whatever a tracker's package raises: it is no reason to stop training
            log.debug("tracker %s ended", self.name, exc_info=True)
            text = " ".join(str(error).split())[:LONGEST_WORD] or type(error).__name__
            self._say(f"stats_logger.{self.name}: {text}; the run goes on without it")
