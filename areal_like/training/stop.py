"""Stop requests: SIGTERM, or Slurm's SIGUSR1, ends training after the current step, with a checkpoint."""

import logging
import signal
from types import FrameType

from areal_like.training.world import World

log = logging.getLogger(__name__)


class StopRequest:
    """Set by SIGTERM on any rank; all ranks see it at the same step."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False

    def listen(self) -> None:
        """Installs the handler. Below a launcher SIGUSR1 is ignored: that asks with SIGTERM when it is time."""
        signal.signal(signal.SIGTERM, self._on_signal)
        if signal.getsignal(signal.SIGUSR1) != signal.SIG_IGN:
            signal.signal(signal.SIGUSR1, self._on_signal)

    def request(self) -> None:
        self._is_set = True

    def is_requested(self) -> bool:
        """All ranks must call it."""
        return bool(self._world.max([self._is_set])[0])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        log.info("stop requested: finishing the current step and writing a checkpoint")
        self.request()
