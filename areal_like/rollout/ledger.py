"""The ledger: a line of JSON for whatever happens to a group, from its submission to the step that trains on it."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

LEDGER = "ledger.jsonl"


class Ledger:
    """Appends. What was written stays, also when the process is killed; a line cut off by that goes."""

    def __init__(self, folder: Path, attempt: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.attempt = folder / LEDGER, attempt
        _cut_half_line(self.path)
        self._file = self.path.open("ab", buffering=0)

    def write(self, events: Iterable[dict[str, Any]]) -> None:
        now = round(time.time(), 3)
        lines = b"".join(
            orjson.dumps({"event": event["event"], "attempt": self.attempt, "time": now, **event}) + b"\n"
            for event in events
        )
        if lines:
            self._file.write(lines)

    def close(self) -> None:
        self._file.close()


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """All events in order. Of a process that still writes, the last line may not be there yet."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield orjson.loads(line)


def _cut_half_line(path: Path) -> None:
    if path.exists():
        content = path.read_bytes()
        if content and not content.endswith(b"\n"):
            os.truncate(path, content.rfind(b"\n") + 1)
