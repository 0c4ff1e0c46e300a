"""Throughput of a run's steps, as a line or a table. Imported by the plan, so it imports little."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from areal_like.observe.text import format_amount

if TYPE_CHECKING:
    from areal_like.observe.reading import Line

WARM_UP_STEPS = 1
"""Steps that are not counted: the first one allocates, compiles and reads."""


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
"""A column is shown if any measured step has a value: a server may take two steps for an update."""


def measured_steps(metrics: "Sequence[Line]") -> "list[Line]":
    """Steps after the warm-up."""
    return [line for line in metrics if "perf/step_s" in line][WARM_UP_STEPS:]


def throughput(metrics: "Sequence[Line]") -> dict[str, float]:
    """Metric -> mean over the measured steps, for memory the maximum; empty if there are too few steps."""
    steps = measured_steps(metrics)
    columns = _columns(steps)
    means = {column.metric: _mean(_values(steps, column)) for column in columns}
    if MEMORY.metric in means:
        means[MEMORY.metric] = max(_values(steps, MEMORY))
    return means


def throughput_line(metrics: "Sequence[Line]") -> str:
    """`1.2k tokens/s, 0.52 s a step, at most 3.1 GB (mean of 9 steps after the first)`"""
    means, count = throughput(metrics), len(measured_steps(metrics))
    if "perf/tokens_per_s" not in means:
        return "not measured: it takes at least two steps"
    speed = f"{format_amount(means['perf/tokens_per_s'])} tokens/s, {means['perf/step_s']:.3g} s a step"
    memory = f", at most {means['perf/memory_gb']:.3g} GB" if "perf/memory_gb" in means else ""
    return f"{speed}{memory} (mean of {count} step{'s' * (count != 1)} after the first)"


def throughput_table(metrics: "Sequence[Line]") -> list[str]:
    """One line per step, and mean, deviation, minimum and maximum."""
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
    means = (line.get(column.metric) for line in steps)
    return [value for value in means if value is not None]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    """Sample standard deviation."""
    centre = _mean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / max(1, len(values) - 1))
