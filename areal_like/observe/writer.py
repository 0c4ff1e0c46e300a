"""Appends the metrics of one process to its file."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import orjson

from areal_like.config.control_characters import escape_controls
from areal_like.config.redact import Redactor
from areal_like.observe.metrics import BENCHMARK, ERROR, LINE_FIELDS, find_metric
from areal_like.observe.text import cut_middle
from areal_like.process.atomic_file import fsync_appended
from areal_like.process.identity import Identity
from areal_like.process.ownership import Ownership
from areal_like.process.run import Run
from areal_like.process.scrubbed_output import scrubbed

MOST_READ, STORED_HEAD, STORED_TAIL = 1 << 16, 1000, 3000
"""Characters of an error: what is searched for secrets, and what is kept."""


def stored_error(text: str) -> str:
    """The text for files of the run: cut, and without the secrets that this process knows and control
    characters."""
    if not text:  # as in nearly every result
        return ""
    text = cut_middle(text, MOST_READ // 2, MOST_READ // 2)
    known = Redactor(frozenset(), dict(os.environ))
    return cut_middle(escape_controls(known.text(scrubbed(text))), STORED_HEAD, STORED_TAIL)


class MetricWriter:
    """Writes `metrics/<role>-<index>.jsonl`: one line per call, complete when the call returns."""

    def __init__(self, run: Run, me: Identity) -> None:
        self.path: Path = run.metrics / f"{me.file_name}.jsonl"
        self.attempt = me.attempt
        self._ownership = Ownership.of_process(run)
        self._known: set[str] = set()

    def write(
        self, step: int, values: Mapping[str, float], error: str = "", field: str = ERROR, benchmark: str = ""
    ) -> None:
        """Writes the values of a completed step, or of an evaluation of its weights, and the most frequent `error` of
        its groups or rows into the `field` for it. `benchmark`: the name of what was evaluated. Values that are not
        finite become null."""
        line: dict[str, float | int | str | None] = {"step": int(step), "attempt": self.attempt, "time": time.time()}
        for name, value in values.items():
            self._check(name)
            number = float(value)
            line[name] = number if math.isfinite(number) else None
        if error:
            line[field] = stored_error(error)
        if benchmark:
            line[BENCHMARK] = benchmark
        self._ownership.require()
        # Opened for each write: a recovery may have replaced the file.
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")

    def sync(self) -> None:
        """The written lines survive a crash of the machine. For each checkpoint, whose steps do so."""
        fsync_appended(self.path)

    def _check(self, name: str) -> None:
        if name in self._known:
            return
        if name in LINE_FIELDS or find_metric(name) is None:
            raise ValueError(f"{name}: no such metric; describe it in METRICS of areal_like/observe/metrics.py first")
        self._known.add(name)
