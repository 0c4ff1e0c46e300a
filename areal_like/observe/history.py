"""Progress of a run so far, for the live view: steps, evaluations, pace. Uses no clock and no terminal."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from areal_like.observe.evaluations import benchmark_lines, evaluation_lines
from areal_like.observe.reading import Line

WINDOW = 20
"""Number of last steps from whose pace the remaining time is estimated."""


class History:
    """Completed steps and evaluations so far."""

    def __init__(self, total_steps: int | None) -> None:
        self.total_steps = total_steps
        self.step = 0
        self.values: dict[str, float] = {}
        self.rewards: list[float] = []
        self.losses: list[float] = []
        self._evaluated: list[Line] = []
        self._times: deque[float] = deque(maxlen=WINDOW + 1)

    def add_step(self, step: int, values: Mapping[str, float], now: float) -> None:
        """Adds a completed step. If it is not after the last one, the history continues from there."""
        if step <= self.step:
            self._go_back(step - 1)
        self.step = step
        self.values = dict(values)
        self._times.append(now)
        for name, series in (("reward/mean", self.rewards), ("train/loss", self.losses)):
            if name in values:
                series.append(values[name])

    def add_evaluation(self, step: int, values: Mapping[str, Any], now: float) -> None:
        self._evaluated.append({"step": step, "time": now, **values})

    def evaluations(self, name: str) -> list[float]:
        """Values of one metric in all evaluations so far."""
        return [line[name] for line in evaluation_lines(self._evaluated) if name in line]

    def benchmarks(self) -> dict[str, float]:
        """Benchmark -> its last score."""
        lines = benchmark_lines(self._evaluated)
        return {name: each[-1]["eval/score"] for name, each in lines.items() if "eval/score" in each[-1]}

    @property
    def last_evaluation(self) -> Line:
        """Empty if there was none."""
        lines = evaluation_lines(self._evaluated)
        return lines[-1] if lines else {}

    @property
    def seconds_per_step(self) -> float | None:
        """Mean over the last steps."""
        if len(self._times) < 2:
            return None
        return (self._times[-1] - self._times[0]) / (len(self._times) - 1)

    def left_s(self, now: float) -> float | None:
        """Estimated time of the remaining steps."""
        pace = self.seconds_per_step
        if pace is None or self.total_steps is None:
            return None
        whole = pace * max(0, self.total_steps - self.step)
        return max(0.0, whole - (now - self._times[-1]))

    def since_s(self, now: float) -> float:
        """Time since the last step."""
        return now - self._times[-1] if self._times else 0.0

    def _go_back(self, step: int) -> None:
        """Forgets the later steps, and the pace before the interruption."""
        for series in (self.rewards, self.losses):
            del series[max(0, len(series) - (self.step - step)) :]
        self._evaluated = [line for line in self._evaluated if line["step"] <= step]
        self._times.clear()
