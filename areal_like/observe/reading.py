"""Reads metric lines: whole files, or lines appended since the last read."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from areal_like.observe.metrics import LINE_FIELDS, TEXTS

JOINED = "metrics.jsonl"
EVALUATION = "eval/"
DUE = "eval/due_step"
"""Field that identifies the evaluation of a line."""

Line = dict[str, Any]

log = logging.getLogger(__name__)


class LineFollower:
    """Reads the lines of one file as they become complete."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def new_lines(self) -> list[Line]:
        try:
            if self.path.stat().st_size <= self.offset:
                return []
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return parse_lines(whole, self.path)


def read_lines(path: Path) -> list[Line]:
    """All complete lines of a file; none if it does not exist."""
    return LineFollower(path).new_lines()


def read_metrics(run_dir: str | Path) -> list[Line]:
    """One entry per step, in order, with its evaluation if it has one, but without the texts of errors: all values are
    numbers. The time is that of the step, not of the evaluation."""
    steps: dict[int, Line] = {}
    for line in read_lines(Path(run_dir) / JOINED):
        known = steps.setdefault(line["step"], {})
        when = known.get("time") if is_evaluation(line) else None
        known.update(line if when is None else {**line, "time": when})
        for name in TEXTS:
            known.pop(name, None)
    return [steps[step] for step in sorted(steps)]


def is_evaluation(line: Line) -> bool:
    """Whether a joined line is of an evaluation; else it is of a step."""
    return all(name in LINE_FIELDS or name.startswith(EVALUATION) for name in line)


def values_of(line: Line) -> dict[str, float]:
    """The metrics of a line, without step, attempt, time and the texts of errors. Null becomes nan."""
    others = (*LINE_FIELDS, *TEXTS)
    return {name: float("nan") if value is None else value for name, value in line.items() if name not in others}


def parse_lines(data: bytes, path: Path) -> list[Line]:
    """Skips broken lines: a process that was killed while writing leaves half a line, to which the next is appended."""
    lines = []
    for text in data.splitlines():
        try:
            line = orjson.loads(text)
        except orjson.JSONDecodeError:
            line = None
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
        elif text.strip():
            log.warning("%s: a broken line is left out: %s", path, text[:80].decode("utf-8", "replace"))
    return lines


def dump_lines(lines: Iterable[Line]) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)
