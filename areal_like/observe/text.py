"""Short texts for numbers, durations, tables and series."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"


def format_amount(value: float) -> str:
    """3100 -> 3.1k"""
    if not math.isfinite(value):
        return str(value)
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def format_small(value: float) -> str:
    """0.0000031 -> 3e-06, 0.021 -> 0.021"""
    return f"{value:.2g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.0e}"


def format_duration(seconds: float) -> str:
    """80 -> 1:20, 3723 -> 1:02:03"""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def cut_middle(text: str, head: int, tail: int) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= head + tail + 5 else f"{text[:head]} ... {text[-tail:]}"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line for each row, with cells of equal width below each other."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def sparkline(values: Sequence[float], width: int) -> str:
    """A line of bars; each bar is the mean of an equal share of the values."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [len(finite) * index // count for index in range(count + 1)]
    means = [sum(finite[low:high]) / (high - low) for low, high in pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((mean - low) / span * len(BARS)))] for mean in means)
