"""Joins the metric lines of several processes into one line per step; cuts joined metrics on a rollback."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from areal_like.observe.metrics import BENCHMARK, LINE_FIELDS, TEXTS
from areal_like.observe.reading import DUE, EVALUATION, JOINED, Line, dump_lines, read_lines
from areal_like.process import atomic_file

MAX_WAITING = 64
"""Steps whose lines are incomplete. A process that writes none any more must not let them grow for ever."""


class JoinedLine(NamedTuple):
    """`kind` is "step", "eval", or "late" for values of a step whose line has been written already."""

    kind: str
    line: Line


class MetricJoiner:
    """Lines in, lines out. `required`: files without which the line of a step is incomplete; others are joined if they
    are in time. A value of a step is emitted once per attempt, however often it is added."""

    def __init__(self, required: Collection[str]) -> None:
        self.required = frozenset(required)
        self._waiting: dict[int, dict[str, Line]] = {}
        self._written: dict[int, tuple[int, frozenset[str]]] = {}
        self._evaluated: dict[tuple[int, float, str], int] = {}
        """(step, due step, benchmark) of an evaluation -> attempt: two evaluations may be of one version of the
        weights."""
        self._names: dict[frozenset[str], frozenset[str]] = {}

    @property
    def last_step(self) -> int:
        """Last step with written values; 0 if none has."""
        return max([*self._written, *(step for step, *_ in self._evaluated)], default=0)

    def remember(self, line: Line) -> None:
        """Takes note of a line that is in the joined file already."""
        step, attempt = line["step"], line.get("attempt", 1)
        if line.get(DUE) is not None:
            identity = _identity(line)
            self._evaluated[identity] = max(attempt, self._evaluated.get(identity, 0))
            return
        names = frozenset(name for name in line if name not in LINE_FIELDS)
        known = self._written.get(step)
        if known is not None and known[0] > attempt:
            return
        if known is not None and known[0] == attempt:
            names |= known[1]
        self._written[step] = attempt, self._names.setdefault(names, names)  # most steps have the same names

    def add(self, source: str, line: Line) -> list[JoinedLine]:
        """Adds a line of one process; returns the lines that it completes."""
        if line.get(DUE) is not None:
            known = self._evaluated.get(_identity(line), 0)
            return [self._pass_on("eval", line)] if line.get("attempt", 1) > known else []
        line = self._new_values(line)
        evaluated = {name: value for name, value in line.items() if name in LINE_FIELDS or name.startswith(EVALUATION)}
        others = {name: value for name, value in line.items() if name in LINE_FIELDS or name not in evaluated}
        joined = [self._pass_on("eval", evaluated)] if _has_values(evaluated) else []
        if _has_values(others):
            joined += self._gather(source, others)
        return joined

    def flush(self) -> list[JoinedLine]:
        """Returns the incomplete lines, at the end of a run."""
        return [self._complete(step) for step in sorted(self._waiting)]

    def rewind(self, step: int) -> None:
        """Forgets the values after `step` completed steps."""
        self._waiting = {known: lines for known, lines in self._waiting.items() if known <= step}
        self._written = {known: written for known, written in self._written.items() if known <= step}
        self._evaluated = {known: attempt for known, attempt in self._evaluated.items() if known[0] <= step}

    def _new_values(self, line: Line) -> Line:
        attempt, names = self._written.get(line["step"], (0, frozenset[str]()))
        mine = line.get("attempt", 1)
        if mine < attempt:
            return {}
        if mine > attempt:
            return line
        return {name: value for name, value in line.items() if name not in names}

    def _gather(self, source: str, line: Line) -> list[JoinedLine]:
        step, attempt = line["step"], line.get("attempt", 1)
        if self._is_written(step, attempt):
            return [self._pass_on("late", line)]
        lines = self._waiting.setdefault(step, {})
        newest = max((known.get("attempt", 1) for known in lines.values()), default=attempt)
        if newest > attempt:
            return []
        if newest < attempt:
            lines.clear()
        lines[source] = {**lines.get(source, {}), **line}
        if not self.required <= lines.keys():
            too_many = max(0, len(self._waiting) - MAX_WAITING)
            return [self._complete(known) for known in sorted(self._waiting)[:too_many]]
        # Every process writes its steps in order: missing values of earlier steps do not come any more.
        earlier = sorted(known for known in self._waiting if known < step)
        return [self._complete(known) for known in [*earlier, step]]

    def _is_written(self, step: int, attempt: int) -> bool:
        known = self._written.get(step)
        return known is not None and known[0] == attempt and any(not name.startswith(EVALUATION) for name in known[1])

    def _complete(self, step: int) -> JoinedLine:
        lines = self._waiting.pop(step)
        merged: Line = {"step": step, "attempt": 1, "time": 0.0}
        several: dict[str, list[float | None]] = {}
        for line in lines.values():
            merged["attempt"] = max(merged["attempt"], line.get("attempt", 1))
            merged["time"] = max(merged["time"], line.get("time", 0.0))
            for name, value in line.items():
                if name not in LINE_FIELDS:
                    several.setdefault(name, []).append(value)
        for name, values in several.items():
            merged[name] = values[0] if len(values) == 1 or name in TEXTS else _mean(values)
        return self._pass_on("step", merged)

    def _pass_on(self, kind: str, line: Line) -> JoinedLine:
        self.remember(line)
        return JoinedLine(kind, line)


def _identity(line: Line) -> tuple[int, float, str]:
    return line["step"], line[DUE], line.get(BENCHMARK, "")


def _has_values(line: Line) -> bool:
    return any(name not in LINE_FIELDS for name in line)


def _mean(values: list[float | None]) -> float | None:
    """Mean over processes that measured the same."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def rewind_metrics(run_dir: str | Path, step: int, attempt: int) -> int:
    """Keeps the metrics of the first `step` completed steps; `attempt` is the one that ended.

    Joined lines that are cut go to `metrics.attempt-K.jsonl`, the processes' own to `metrics/attempt-K/`. No other
    process may write metrics meanwhile. Returns how many steps were cut."""
    root = Path(run_dir)
    folder = root / "metrics"
    cut = _cut(root / JOINED, step, root / f"metrics.attempt-{attempt}.jsonl")
    steps = {line["step"] for line in cut}
    for path in sorted(folder.glob("*.jsonl")):
        steps |= {line["step"] for line in _cut(path, step, folder / f"attempt-{attempt}" / path.name)}
    return len(steps)


def _cut(path: Path, step: int, aside: Path) -> list[Line]:
    """Moves the lines after `step` to `aside`. Both files are replaced atomically, so that a second call completes an
    interrupted one."""
    if not path.is_file():
        return []
    lines = read_lines(path)
    over = [line for line in lines if line["step"] > step]
    kept = dump_lines(line for line in lines if line["step"] <= step)
    if len(kept) == path.stat().st_size:
        return []
    if over:
        earlier = read_lines(aside)
        aside.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.write_atomic(aside, dump_lines([*earlier, *(line for line in over if line not in earlier)]))
    atomic_file.write_atomic(path, kept)
    return over
