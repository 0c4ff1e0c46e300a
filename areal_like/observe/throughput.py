"""How fast the steps of a run were: a line, or a table. A plan imports this, so that it imports little itself."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from areal_like.observe.text import format_amount

if TYPE_CHECKING:
    from areal_like.observe.reading import Line

WARM_UP_STEPS = 1
"""The first step allocates, compiles and reads what later ones have."""


class Column(NamedTuple):
    title: str
    metric: str


MEMORY = Column("memory GB", "perf/memory_gb")
COLUMNS = (
    Column("step s", "perf/step_s"),
    Column("train s", "perf/train_s"),
    Column("tokens/s", "perf/tokens_per_s"),
    Column("samples/s", "perf/samples_per_s"),
    Column("generated/s", "perf/generate_tokens_per_s"),
    Column("MFU", "perf/mfu"),
    MEMORY,
)
"""Those that a measured step has are shown: servers may take an update over two steps, and none in the next."""


def measured_steps(metrics: "Sequence[Line]") -> "list[Line]":
    """The steps that count."""
    return [line for line in metrics if "perf/step_s" in line][WARM_UP_STEPS:]


def throughput(metrics: "Sequence[Line]") -> dict[str, float]:
    """By metric the mean of the measured steps, the most of memory; empty where there were too few steps."""
    steps = measured_steps(metrics)
    columns = _columns(steps)
    found = {column.metric: _mean(_values(steps, column)) for column in columns}
    if MEMORY.metric in found:
        found[MEMORY.metric] = max(_values(steps, MEMORY))
    return found


def throughput_line(metrics: "Sequence[Line]") -> str:
    """`1.2k tokens/s, 0.52 s a step, at most 3.1 GB (mean of 9 steps after the first)`"""
    found, count = throughput(metrics), len(measured_steps(metrics))
    if "perf/tokens_per_s" not in found:
        return "not known: a second step is what is measured"
    speed = f"{format_amount(found['perf/tokens_per_s'])} tokens/s, {found['perf/step_s']:.3g} s a step"
    memory = f", at most {found['perf/memory_gb']:.3g} GB" if "perf/memory_gb" in found else ""
    return f"{speed}{memory} (mean of {count} step{'s' * (count != 1)} after the first)"


def throughput_table(metrics: "Sequence[Line]") -> list[str]:
    """One line per step, and what they come to."""
    steps = measured_steps(metrics)
    columns = _columns(steps)
    if not columns:
        return []
    rows = [["step", *(column.title for column in columns)]]
    rows += [[str(line["step"]), *(_cell(line.get(column.metric)) for column in columns)] for line in steps]
    for name, reduce in (("mean", _mean), ("std", _deviation), ("min", min), ("max", max)):
        rows.append([name, *(f"{reduce(_values(steps, column)):.4g}" for column in columns)])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = "-" * len(lines[0])
    return [lines[0], rule, *lines[1 : len(steps) + 1], rule, *lines[len(steps) + 1 :]]


def _columns(steps: "Sequence[Line]") -> list[Column]:
    return [column for column in COLUMNS if _values(steps, column)]


def _values(steps: "Sequence[Line]", column: Column) -> list[float]:
    found = (line.get(column.metric) for line in steps)
    return [value for value in found if value is not None]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    """Of a sample."""
    centre = _mean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / max(1, len(values) - 1))
