"""Makes one line per step of what several processes said about it. Pure logic: lines in, lines out."""

from collections.abc import Collection
from typing import NamedTuple

from areal_like.observe.metrics import LINE_FIELDS
from areal_like.observe.reading import DUE, EVALUATION, Line


class JoinedLine(NamedTuple):
    """`kind` is "step", "eval", or "late" for values of a step that has been written already."""

    kind: str
    line: Line


class MetricJoiner:
    """`wanted` are the files that must have spoken before the line of a step is complete; others join where they are
    in time. The same value of a step is passed on once in an attempt, however often it is taken."""

    def __init__(self, required: Collection[str]) -> None:
        self.required = frozenset(required)
        self._waiting: dict[int, dict[str, Line]] = {}
        self._written: dict[int, tuple[int, frozenset[str]]] = {}
        self._evaluated: dict[tuple[int, float], int] = {}
        """The attempt of evaluations that say which they are, by step: two of them may have answers of one version."""
        self._names: dict[frozenset[str], frozenset[str]] = {}

    @property
    def last_step(self) -> int:
        """The last step of which something is written; 0 where there is nothing."""
        return max([*self._written, *(step for step, _ in self._evaluated)], default=0)

    def remember(self, line: Line) -> None:
        """A line that is in the joined file already."""
        step, attempt = line["step"], line.get("attempt", 1)
        if (due := line.get(DUE)) is not None:
            self._evaluated[step, due] = max(attempt, self._evaluated.get((step, due), 0))
            return
        names = frozenset(name for name in line if name not in LINE_FIELDS)
        known = self._written.get(step)
        if known is not None and known[0] > attempt:
            return
        if known is not None and known[0] == attempt:
            names |= known[1]
        self._written[step] = attempt, self._names.setdefault(names, names)  # most steps have the same names

    def add(self, source: str, line: Line) -> list[JoinedLine]:
        """What a new line of one process completes."""
        if (due := line.get(DUE)) is not None:
            known = self._evaluated.get((line["step"], due), 0)
            return [self._pass_on("eval", line)] if line.get("attempt", 1) > known else []
        line = self._news(line)
        evaluated = {name: value for name, value in line.items() if name in LINE_FIELDS or name.startswith(EVALUATION)}
        flush = {name: value for name, value in line.items() if name in LINE_FIELDS or name not in evaluated}
        found = [self._pass_on("eval", evaluated)] if _has_values(evaluated) else []
        if _has_values(flush):
            found += self._gather(source, flush)
        return found

    def flush(self) -> list[JoinedLine]:
        """The lines that nobody will complete any more."""
        return [self._complete(step) for step in sorted(self._waiting)]

    def rewind(self, step: int) -> None:
        """Forgets what came after so many completed steps."""
        self._waiting = {known: lines for known, lines in self._waiting.items() if known <= step}
        self._written = {known: said for known, said in self._written.items() if known <= step}
        self._evaluated = {known: said for known, said in self._evaluated.items() if known[0] <= step}

    def _news(self, line: Line) -> Line:
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
            return []
        # Every process writes its steps in order: what an earlier one still waits for does not come any more.
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
            merged[name] = values[0] if len(values) == 1 else _mean(values)
        return self._pass_on("step", merged)

    def _pass_on(self, kind: str, line: Line) -> JoinedLine:
        self.remember(line)
        return JoinedLine(kind, line)


def _has_values(line: Line) -> bool:
    return any(name not in LINE_FIELDS for name in line)


def _mean(values: list[float | None]) -> float | None:
    """Of processes that measured the same."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
