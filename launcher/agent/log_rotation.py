"""Keeps the files small to which processes append without end: their logs, and their stacks."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

OLDER = ".1"
CHUNK = 1 << 20
FREE_PARTS = 2
"""Of a file that is copied there must be so many times its size free: a copy must not fill the disk of the run."""
FIRST_PAUSE_S, MAX_PAUSE_S = 60.0, 3600.0
"""After a failure, before the next try; doubled each time."""


class LogRotation:
    """Pauses after a failure: each try would write as much again."""

    def __init__(self) -> None:
        self._pauses: dict[Path, tuple[float, float]] = {}
        """Of files that could not be copied: end and length."""

    def rotate(self, path: Path | None, most: int) -> bool:
        if path is None or not _is_larger(path, most):
            return False
        ends, pause_s = self._pauses.get(path, (0.0, FIRST_PAUSE_S / 2))
        if time.monotonic() < ends:
            return False
        if done := rotate(path, most):
            self._pauses.pop(path, None)
        else:
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            self._pauses[path] = time.monotonic() + pause_s, pause_s
        return done


def rotate(path: Path | None, most: int) -> bool:
    """If a file is larger, copies it to one with the ending `.1` and empties it. Its writers hold it open in append
    mode, so that they go on at its new end; what one writes between the last read and the cut is lost. A file that
    cannot be copied, or whose copy would leave the disk nearly full, stays as it is."""
    if path is None or not _is_larger(path, most):
        return False
    older, new = path.with_name(path.name + OLDER), path.with_name(f".{path.name}{OLDER}")
    try:
        if shutil.disk_usage(path.parent).free <= FREE_PARTS * path.stat().st_size:
            return False
        with path.open("r+b") as file:
            with new.open("wb") as copy:
                shutil.copyfileobj(file, copy, CHUNK)
            new.replace(older)
            file.truncate(0)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        return False
    return True


def _is_larger(path: Path, most: int) -> bool:
    try:
        return os.stat(path).st_size > most
    except OSError:
        return False
