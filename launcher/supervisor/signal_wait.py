"""A sleep that signals and ended children interrupt, and the list of the signals received."""

import select
import signal
import socket
from types import FrameType
from typing import Self

from areal_like.process.stop_signals import HANDLED_SIGNALS


class SignalWait:
    """Use inside `with`, in the main thread."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._reads, self._writes = socket.socketpair()
        self._reads.setblocking(False)
        self._writes.setblocking(False)

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in (*HANDLED_SIGNALS, signal.SIGCHLD)}
        self._fd = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
        for number in HANDLED_SIGNALS:
            if self._before[number] != signal.SIG_IGN:
                signal.signal(number, self._take)
        signal.signal(signal.SIGCHLD, _nothing)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd)
        self._reads.close()
        self._writes.close()

    def wait(self, seconds: float) -> None:
        """Sleeps up to `seconds`."""
        if self._received:
            return
        ready, _, _ = select.select([self._reads], [], [], seconds)
        if ready:
            self._reads.recv(4096)

    def release_interrupt(self) -> None:
        """Ctrl-C acts as before the wait; the other signals are still taken."""
        signal.signal(signal.SIGINT, self._before[signal.SIGINT])

    def received(self) -> list[int]:
        """The signals since the last call."""
        taken, self._received = self._received, []
        return taken

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._received.append(number)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """SIGCHLD needs a handler to interrupt the sleep."""
