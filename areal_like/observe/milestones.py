"""Milestones before the first step, read from the event ledger, and the total number of steps."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from areal_like.process.atomic_file import complete_lines_end

BEGUN, CORRECTED = "begun", "corrected"
"""Events with the number of steps; the second follows when the number of rows that are not too long is known."""
TOTALS = tuple(f'{{"event":"{name}"'.encode() for name in (BEGUN, CORRECTED))
EVALUATING = b'{"event":"evaluating"'
"""How far an evaluation is, of a run that only evaluates."""
PHASES = {"submitted": "weights are served", "finished": "first answers", "batched": "first batch"}
"""Event -> text for the user at the first such event."""


def write_total_steps(ledger: Path, steps: int, attempt: int) -> None:
    """Writes the number of steps to the ledger, for a run without a controller, which would write it."""
    _write(ledger, {"event": BEGUN, "attempt": attempt, "time": time.time(), "steps": steps})


def write_corrected_steps(ledger: Path, rows: int, steps: int, attempt: int) -> None:
    """The same once the number of rows that are left out is known; `rows` are left."""
    _write(ledger, {"event": CORRECTED, "attempt": attempt, "time": time.time(), "rows": rows, "steps": steps})


def _write(ledger: Path, event: dict[str, Any]) -> None:
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with ledger.open("ab") as file:
        file.write(orjson.dumps(event) + b"\n")


class Milestones:
    """Finds the first of each event from now on. `on_phase` gets its text and time (since 1970), `on_total` the number
    of steps, which may only be known once the data is read, `on_progress` how far an evaluation is."""

    def __init__(
        self,
        ledger: Path,
        on_phase: Callable[[str, float], None],
        on_total: Callable[[int], None],
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._ledger, self._on_phase, self._on_total, self._on_progress = ledger, on_phase, on_total, on_progress
        self._offset = complete_lines_end(ledger) if ledger.is_file() else 0
        self._waiting = dict(PHASES)

    def poll(self) -> None:
        """Reads new events; of most only the beginning once all milestones are reached."""
        if not self._ledger.is_file():
            return
        with self._ledger.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            if line.startswith(EVALUATING):
                self._on_progress(progress_text(orjson.loads(line)))
                continue
            if not self._waiting and not line.startswith(TOTALS):
                continue
            event = orjson.loads(line)
            name = event["event"]
            if name in (BEGUN, CORRECTED):
                self._on_total(event["steps"])
            elif name in self._waiting:
                self._on_phase(self._waiting.pop(name), event["time"])


def progress_text(event: Mapping[str, Any]) -> str:
    """`gsm8k: 120 of 500 rows, 2 failed, score 0.62 so far`."""
    failed = f", {event['failed']} failed" if event["failed"] else ""
    score = "" if event["score"] is None else f", score {event['score']:.3f} so far"
    return f"{event.get('benchmark', 'valid_dataset')}: {event['done']} of {event['rows']} rows{failed}{score}"
