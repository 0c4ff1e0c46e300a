"""Signals that ask a command to stop, and how it handles them while no run of its own does."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from areal_like.process.exit_codes import DONE, INTERRUPTED, STOPPED_EARLY

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""SIGUSR1 is what Slurm sends where `--signal=USR1@300` asks for a warning."""
HANDLED_SIGNALS = (signal.SIGINT, *STOP_SIGNALS)

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers


def stop_command(_number: int, _frame: FrameType | None) -> None:
    """Handler of a stop signal where there is nothing to stop but the command, which cleans up."""
    raise SystemExit(STOPPED_EARLY)


@contextmanager
def handled(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handles these signals, except those that are ignored, as under nohup. What handled them before does so again at
    the end, unless others have replaced the handler. Only the main thread can handle signals: in others nothing
    changes."""
    before: dict[signal.Signals, Handler] = {}
    if threading.current_thread() is threading.main_thread():
        old = {number: signal.getsignal(number) for number in numbers}
        before = {number: each for number, each in old.items() if each is not None and each != signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, each in before.items():
            if signal.getsignal(number) == handler:
                signal.signal(number, each)


def stop_code(numbers: Sequence[int]) -> int:
    """The exit code of a command that has received these signals; 0 for none."""
    if signal.SIGINT in numbers:
        return INTERRUPTED
    return STOPPED_EARLY if set(numbers) & set(STOP_SIGNALS) else DONE
