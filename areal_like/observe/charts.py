"""Line charts: for the terminal in braille characters, and as SVG."""

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

Points = Sequence[tuple[float, float]]

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, row by row."""
MARK = "●"
WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 56, 52
COLOURS = ("#e08a1e", "#3b82c4", "#2f9e6e", "#b05fb0")
GREY = "#808080"


class Series(NamedTuple):
    """A line of a chart. `marked`: has few points, each of which is drawn."""

    name: str
    points: Points
    marked: bool = False


class ChartAxis(NamedTuple):
    low: float
    high: float
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """Position of a value between the ends, 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


def value_axis(values: Sequence[float], num_ticks: int = 5) -> ChartAxis:
    """An axis that begins and ends at a tick and contains all values, with about `num_ticks` ticks."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    step = _round_step((high - low) / (num_ticks - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(index * step, 12) for index in range(first, last + 1))
    return ChartAxis(ticks[0], ticks[-1], ticks)


def step_axis(steps: Sequence[float], num_ticks: int = 5) -> ChartAxis:
    """An axis from the first step to the last, with whole numbers as ticks."""
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


def terminal_chart(series: Sequence[Series], width: int = 64, height: int = 9) -> list[str]:
    """Rows of at most `width` characters, with a legend below. Empty without points."""
    series = [one._replace(points=finite_points(one.points)) for one in series]
    series = [one for one in series if one.points]
    if not series:
        return []
    across = step_axis([x for one in series for x, _ in one.points], num_ticks=5)
    up = value_axis([y for one in series for _, y in one.points], num_ticks=5)
    margin = max(len(tick_label(tick)) for tick in up.ticks) + 1
    columns = width - margin - 1
    cells = _cells(series, across, up, columns, height)
    at_row = {_row(tick, up, height): tick_label(tick) for tick in up.ticks}
    rows = [
        f"{at_row.get(row, ''):>{margin}}{'┤' if row in at_row else '│'}{''.join(cells[row])}" for row in range(height)
    ]
    left, right = tick_label(across.low), tick_label(across.high)
    base = f"{'':>{margin}}└{'─' * columns}"
    steps = f"{'':>{margin}} {left}{'step':^{max(4, columns - len(left) - len(right))}}{right}"
    legend = "   ".join(f"{MARK if one.marked else '⠒⠒'} {one.name}" for one in series)
    return [*(row.rstrip() for row in rows), base, steps, f"{'':>{margin}} {legend}"]


def _row(value: float, up: ChartAxis, height: int) -> int:
    return round((1.0 - up.share(value)) * (height - 1))


def _cells(series: Sequence[Series], across: ChartAxis, up: ChartAxis, columns: int, height: int) -> list[list[str]]:
    dots = [[0] * columns for _ in range(height)]
    for one in series:
        for half, y in _curve(one, across, columns) if not one.marked else ():
            # A tick is at the middle of a row.
            row = min(4 * height - 1, max(0, round((1.0 - up.share(y)) * 4 * (height - 1) + 1.5)))
            dots[row // 4][half // 2] |= DOTS[row % 4][half % 2]
    cells = [[chr(0x2800 + bits) if bits else " " for bits in line] for line in dots]
    for one in series:
        for x, y in one.points if one.marked else ():
            cells[_row(y, up, height)][round(across.share(x) * (columns - 1))] = MARK
    return cells


def _curve(one: Series, across: ChartAxis, columns: int) -> list[tuple[int, float]]:
    """Pairs of position in half columns and mean of the values there; linear interpolation between positions."""
    at: dict[int, list[float]] = {}
    for x, y in one.points:
        at.setdefault(round(across.share(x) * (2 * columns - 1)), []).append(y)
    known = [(x, sum(values) / len(values)) for x, values in sorted(at.items())]
    between = [
        (left + step, low + (high - low) * step / (right - left))
        for (left, low), (right, high) in pairwise(known)
        for step in range(1, right - left)
    ]
    return known + between


def svg_chart(title: str, series: Sequence[Series], x_label: str = "step") -> str:
    """Text of an SVG file; the colours are readable on light and dark background."""
    series = [one._replace(points=finite_points(one.points)) for one in series]
    series = [one for one in series if one.points]
    across = step_axis([x for one in series for x, _ in one.points], num_ticks=8)
    up = value_axis([y for one in series for _, y in one.points], num_ticks=6)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + across.share(x) * wide, TOP + (1.0 - up.share(y)) * high

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{GREY}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for tick in up.ticks:
        y = place(across.low, tick)[1]
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GREY}" stroke-opacity="0.25"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick_label(tick)}</text>'
        )
    for tick in across.ticks:
        x = place(tick, up.low)[0]
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{tick_label(tick)}</text>')
    parts.append(
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="{GREY}"/>'
        f'<text x="{LEFT + wide / 2:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>'
    )
    at = float(LEFT)
    for index, one in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in one.points))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
        )
        if one.marked:
            dots = (place(*point) for point in one.points)
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in dots]
        parts.append(
            f'<rect x="{at:.1f}" y="33" width="12" height="12" rx="2" fill="{colour}"/>'
            f'<text x="{at + 18:.1f}" y="44">{escape(one.name)}</text>'
        )
        at += 42 + 7.2 * len(one.name)
    return "\n".join([*parts, "</svg>"]) + "\n"
