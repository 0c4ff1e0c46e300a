"""What a run has learnt, read from its directory."""

from collections.abc import Sequence
from pathlib import Path

from areal_like.observe.evaluations import evaluation_lines
from areal_like.observe.reading import EVALUATION, JOINED, Line, read_lines, read_metrics

OBJECTIVE_FALLBACKS = ("eval/score", "eval/accuracy", "eval/loss", "reward/mean", "train/loss")
"""What a run is judged by where `objective` names nothing; the first that there is."""


class RunRecord:
    """Metrics by step, and whole evaluations."""

    def __init__(self, metrics: Sequence[Line], evaluated: Sequence[Line]) -> None:
        self.metrics, self.evaluations = metrics, evaluated

    @property
    def steps(self) -> int:
        """Completed ones. An evaluation alone is none."""
        return max((line["step"] for line in self.metrics if "train/loss" in line or "perf/step_s" in line), default=0)

    def points(self, name: str) -> list[tuple[int, float]]:
        """Every step with a value, and that value."""
        lines = self.evaluations if name.startswith(EVALUATION) else self.metrics
        return [(line["step"], line[name]) for line in lines if line.get(name) is not None]

    def last(self, name: str) -> float | None:
        """Of evaluations that of the last one, which may have none: an older score is not what the run ended with."""
        if name.startswith(EVALUATION):
            values = [line[name] for line in self.evaluations if name in line]
            return values[-1] if values else None
        points = self.points(name)
        return points[-1][1] if points else None

    def objective_name(self, wanted: str | None) -> str | None:
        """Which metric is the run's objective."""
        return wanted or next((name for name in OBJECTIVE_FALLBACKS if self._has(name)), None)

    def _has(self, name: str) -> bool:
        """Whether there is such a value; of an evaluation also where it came to none."""
        if name.startswith(EVALUATION):
            return any(name in line for line in self.evaluations)
        return bool(self.points(name))

    def objective(self, wanted: str | None) -> float | None:
        """Its last value; None where there is none."""
        name = self.objective_name(wanted)
        return None if name is None else self.last(name)


def read_run_record(run_dir: str | Path) -> RunRecord:
    return RunRecord(read_metrics(run_dir), evaluation_lines(read_lines(Path(run_dir) / JOINED)))
