"""Keeps the files small to which processes append without end: their logs, and their stacks."""

import os
import shutil
from pathlib import Path

OLDER = ".1"
CHUNK = 1 << 20


def rotate(path: Path | None, most: int) -> bool:
    """If a file is larger, copies it to one with the ending `.1` and empties it. Its writers hold it open in append
    mode, so that they go on at its new end; what one writes between the last read and the cut is lost. A file that
    cannot be copied stays as it is."""
    if path is None or not _is_larger(path, most):
        return False
    older, new = path.with_name(path.name + OLDER), path.with_name(f".{path.name}{OLDER}")
    try:
        with path.open("r+b") as file:
            with new.open("wb") as copy:
                shutil.copyfileobj(file, copy, CHUNK)
            new.replace(older)
            file.truncate(0)
    except OSError:
        new.unlink(missing_ok=True)
        return False
    return True


def _is_larger(path: Path, most: int) -> bool:
    try:
        return os.stat(path).st_size > most
    except FileNotFoundError:
        return False
