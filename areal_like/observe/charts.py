"""Scales for charts: round numbers at the ticks."""

import math
from collections.abc import Sequence
from typing import NamedTuple

Points = Sequence[tuple[float, float]]


class Series(NamedTuple):
    """A line of a chart. `marked` ones have few points, each of which is shown."""

    name: str
    points: Points
    marked: bool = False


class ChartAxis(NamedTuple):
    low: float
    high: float
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """Where between the ends a value lies, 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


def value_axis(values: Sequence[float], num_ticks: int = 5) -> ChartAxis:
    """An axis that begins and ends at a tick and holds all values, with about so many ticks."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    step = _round_step((high - low) / (num_ticks - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(index * step, 12) for index in range(first, last + 1))
    return ChartAxis(ticks[0], ticks[-1], ticks)


def step_axis(steps: Sequence[float], num_ticks: int = 5) -> ChartAxis:
    """An axis from the first step to the last; its ticks are whole numbers."""
    low, high = min(steps, default=0.0), max(steps, default=1.0)
    if low == high:
        high = low + 1.0
    step = max(1.0, _round_step((high - low) / (num_ticks - 1)))
    ticks = tuple(index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1))
    return ChartAxis(low, high, ticks)


def finite_points(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(y)]


def tick_label(value: float) -> str:
    return f"{value:g}"


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... and their decimals."""
    size = 10.0 ** math.floor(math.log10(step))
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= step * 0.999)
