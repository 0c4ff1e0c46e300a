"""A request to end: the step at hand is finished, a checkpoint is written, and the process leaves."""

import logging
import signal
from types import FrameType

from areal_like.training.world import World

log = logging.getLogger(__name__)


class StopRequest:
    """Set by SIGTERM to any rank; all ranks learn of it at the same step."""

    def __init__(self, world: World) -> None:
        self._world, self._asked = world, False

    def listen(self) -> None:
        """From now on, SIGTERM is a request."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def ask(self) -> None:
        self._asked = True

    def is_requested(self) -> bool:
        """All ranks must call it."""
        return bool(self._world.max([self._asked])[0])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        log.info("asked to stop: the step at hand is finished and a checkpoint written")
        self.ask()
