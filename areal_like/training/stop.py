"""Stop requests: SIGTERM, or Slurm's SIGUSR1, ends training after the current step, with a checkpoint."""

import logging
import signal
import socket
import threading
from types import FrameType

from areal_like.training.world import World

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

log = logging.getLogger(__name__)


class StopRequest:
    """Set by SIGTERM on any rank; all ranks see it at the same step."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False
        self.arrived = threading.Event()
        """Set at once, where the main thread only sees the signal when the operation that it computes has ended."""

    def listen(self) -> None:
        """Installs the handler. Below a launcher SIGUSR1 is ignored: that asks with SIGTERM when it is time."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)
        threading.Thread(target=self._follow, args=(ours,), name="stop requests", daemon=True).start()
        signal.signal(signal.SIGTERM, self._on_signal)
        if signal.getsignal(signal.SIGUSR1) != signal.SIG_IGN:
            signal.signal(signal.SIGUSR1, self._on_signal)

    def request(self) -> None:
        self._is_set = True
        self.arrived.set()

    def is_requested(self) -> bool:
        """All ranks must call it."""
        return bool(self._world.max([self._is_set])[0])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        log.info("stop requested: finishing the current step and writing a checkpoint")
        self._is_set = True  # alone: the lock of `arrived` may be held by this thread

    def _follow(self, numbers: socket.socket) -> None:
        """Each signal that Python handles is a byte, also after the first."""
        while received := numbers.recv(64):
            if set(received) & set(SIGNALS):
                self.arrived.set()
