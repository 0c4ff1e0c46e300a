"""A chart for the terminal: lines in braille dots, marked points on top."""

from collections.abc import Sequence
from itertools import pairwise

from areal_like.observe.charts import ChartAxis, Series, finite_points, step_axis, tick_label, value_axis

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, row by row."""
MARK = "●"


def terminal_chart(series: Sequence[Series], width: int = 64, height: int = 9) -> list[str]:
    """Rows of at most `width` characters and the legend below. No points, no chart."""
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
            # The middle of a row is where a tick stands: the dots above and below it share the rest.
            row = min(4 * height - 1, max(0, round((1.0 - up.share(y)) * 4 * (height - 1) + 1.5)))
            dots[row // 4][half // 2] |= DOTS[row % 4][half % 2]
    cells = [[chr(0x2800 + bits) if bits else " " for bits in line] for line in dots]
    for one in series:
        for x, y in one.points if one.marked else ():
            cells[_row(y, up, height)][round(across.share(x) * (columns - 1))] = MARK
    return cells


def _curve(one: Series, across: ChartAxis, columns: int) -> list[tuple[int, float]]:
    """Position in half columns -> mean of the values that fall there; between two positions, a straight line."""
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
