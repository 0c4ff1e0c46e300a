"""Event ledger: a JSON line for each event of a group, from its submission to the step that trains on it."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from areal_like.process.atomic_file import complete_lines_end, fsync_appended


class Ledger:
    """Appends events. Written lines survive a kill of the process; a line that the kill cut off is removed."""

    def __init__(self, path: Path, attempt: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self.attempt = path, attempt
        if path.exists():
            os.truncate(path, complete_lines_end(path))
        self._file = path.open("ab", buffering=0)

    def write(self, events: Iterable[dict[str, Any]]) -> None:
        now = round(time.time(), 3)
        lines = b"".join(
            orjson.dumps({"event": event["event"], "attempt": self.attempt, "time": now, **event}) + b"\n"
            for event in events
        )
        left = memoryview(lines)
        while left:  # a full disk takes only a part of it
            left = left[self._file.write(left) :]

    def sync(self) -> None:
        """The written lines survive a crash of the machine, too."""
        fsync_appended(self._path)

    def close(self) -> None:
        self._file.close()


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """All events in order, without a last line that is still being written."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield orjson.loads(line)
