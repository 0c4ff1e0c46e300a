"""What happens on the way to the first step, as the ledger tells it."""

from collections.abc import Callable
from pathlib import Path

import orjson

PHASES = {"submitted": "weights are served", "finished": "first answers", "batched": "first batch"}
"""The first of these events -> what it means to someone who waits."""


class Milestones:
    """Looks for the first of each event of one attempt; `on_phase` gets its name and when it was, since 1970."""

    def __init__(self, ledger: Path, attempt: int, on_phase: Callable[[str, float], None]) -> None:
        self._ledger, self._attempt, self._on_phase = ledger, attempt, on_phase
        self._offset = 0
        self._waiting = dict(PHASES)

    def look(self) -> None:
        """Cheap, and nothing at all once everything has been seen."""
        if not self._waiting or not self._ledger.is_file():
            return
        with self._ledger.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            event = orjson.loads(line)
            name = event["event"]
            if name in self._waiting and event["attempt"] >= self._attempt and event.get("evaluation") is None:
                self._on_phase(self._waiting.pop(name), event["time"])
