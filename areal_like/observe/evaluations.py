"""Evaluations of a run: their metric lines, texts about them, and the copy of their scores."""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from areal_like.config.control_characters import escape_controls
from areal_like.observe.metrics import BENCHMARK, ERROR, ERROR_ROWS
from areal_like.observe.reading import DUE, EVALUATION, Line, dump_lines, is_evaluation, read_lines
from areal_like.observe.text import cut_middle
from areal_like.process import atomic_file

FILE = "evaluations.jsonl"

ERROR_HEAD, ERROR_TAIL = 80, 115
"""Characters that are kept of an error that is longer: it may begin with long paths, and ends with the message."""

PASS = re.compile(r"eval/pass@\d+")
HEADLINES = {"eval/score": "held-out", "eval/accuracy": "held-out accuracy", "eval/loss": "held-out loss"}
"""Metric that is shown of an evaluation (the first that it has) -> its title."""


def evaluation_lines(lines: Iterable[Line]) -> list[Line]:
    """One line per evaluation of `valid_dataset`, in the order of steps. After a recovery a repeated one replaces the
    first."""
    alone: list[Line] = []
    by_due: dict[float, Line] = {}
    for line in lines:
        if not is_evaluation(line) or line.get(BENCHMARK):
            continue
        if line.get(DUE) is None:
            alone.append(line)
        else:
            by_due[line[DUE]] = line
    return sorted([*alone, *by_due.values()], key=lambda line: int(line["step"]))


def benchmark_lines(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Benchmark -> its evaluations, as those of `valid_dataset`: without its name in the metrics."""
    found: dict[str, list[Line]] = {}
    for line in filter(is_evaluation, lines):
        if name := line.get(BENCHMARK):
            found.setdefault(name, []).append(without_benchmark(line))
    return {name: evaluation_lines(each) for name, each in found.items()}


def without_benchmark(values: Mapping[str, Any]) -> Line:
    """`eval/gsm8k/score` becomes `eval/score`."""
    prefix = f"{EVALUATION}{values.get(BENCHMARK, '')}/"
    return {
        f"{EVALUATION}{name.removeprefix(prefix)}" if name.startswith(prefix) else name: value
        for name, value in values.items()
        if name != BENCHMARK
    }


def headline_metric(values: Mapping[str, Any]) -> str | None:
    """The metric that is shown of an evaluation; None if it has none of them."""
    return next((name for name in HEADLINES if name in values), None)


def has_value(values: Mapping[str, Any], name: str) -> bool:
    value = values.get(name)
    return value is not None and math.isfinite(value)


def why_no_score(values: Mapping[str, Any], max_failed_share: float | None = None) -> str:
    """Why an evaluation's value is null, as one clause. `max_failed_share`: that of the configuration, if known."""
    rows, failed, rejected = _row_counts(values)
    share = (failed + rejected) / rows if rows else 0.0
    if not share or (max_failed_share is not None and share < 1 and failed + rejected <= max_failed_share * rows):
        return "it is not finite"
    text = _missing(values)
    if share < 1:
        allowed = "less" if max_failed_share is None else f"{100 * max_failed_share:.3g}%"
        text += f" ({100 * share:.3g}%, evaluator.max_failed_share allows {allowed})"
    if error := short_error(values.get(ERROR)):
        count = values.get(ERROR_ROWS)
        text += f"; most frequent error{f' ({count:g} of {failed:g})' if count else ''}: {error}"
    return f"{text}; see logs/episodes-*.log" if failed else text


def short_error(error: Any) -> str:
    """The error on one line of at most 200 characters, without control characters; empty if it is no text."""
    if not isinstance(error, str):
        return ""
    return cut_middle(escape_controls(" ".join(error.split())), ERROR_HEAD, ERROR_TAIL)


def score_remarks(values: Mapping[str, Any]) -> str:
    """Remarks to the score: " (weights of steps 50 to 52; 3 of 500 rows failed)"; empty if there are none."""
    oldest, newest = values.get("eval/version_min"), values.get("eval/version_max")
    parts = []
    if oldest is not None and newest is not None:
        if newest > oldest:
            parts.append(f"weights of steps {oldest:g} to {newest:g}")
        elif oldest != values.get(DUE, oldest):
            parts.append(f"weights of step {oldest:g}")
    if missing := _missing(values):
        parts.append(missing)
    return f" ({'; '.join(parts)})" if parts else ""


def evaluation_text(step: int, values: Mapping[str, Any], max_failed_share: float | None = None) -> str | None:
    """A line about an evaluation, with the step at which it was due; None if it has no metric to show. The band of one
    answer per row of `valid_dataset` is left to metrics.jsonl: the line of the usual evaluation stays short."""
    benchmark = values.get(BENCHMARK)
    values = without_benchmark(values)
    name = headline_metric(values)
    if name is None:
        return None
    due = int(values.get(DUE, step))
    when = "at the start" if due == 0 else f"at step {due}"
    title = f"benchmark {benchmark}" if benchmark else HEADLINES[name]
    if not has_value(values, name):
        return f"{title}: no score {when}: {why_no_score(values, max_failed_share)}"
    several = pass_text(values)
    band = band_text(values, name) if benchmark or several else ""
    return f"{title} {values[name]:.3f}{band}{several} {when}{score_remarks(values)}"


def band_text(values: Mapping[str, Any], name: str) -> str:
    """` [0.58, 0.66]`; empty if the metric has no band."""
    low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
    return "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"


def pass_text(values: Mapping[str, Any]) -> str:
    """`, pass@4 0.81`: the largest k; empty if rows had one answer."""
    sizes = [name for name in values if PASS.fullmatch(name) and has_value(values, name)]
    name = max(sizes, key=lambda each: int(each.rpartition("@")[2]), default=None)
    return "" if name is None else f", {name.removeprefix(EVALUATION)} {values[name]:.3f}"


def _row_counts(values: Mapping[str, Any]) -> tuple[float, float, float]:
    """All rows, those that failed, and those that were rejected."""
    rows, failed, rejected = (values.get(f"eval/{name}") or 0.0 for name in ("rows", "failed", "rejected"))
    return rows, failed, rejected


def _missing(values: Mapping[str, Any]) -> str:
    """How many rows are in no mean, and the reasons; empty if there are none."""
    rows, failed, rejected = _row_counts(values)
    of_rows = f" of {rows:g} rows"
    parts = [f"{failed:g}{of_rows} failed"] if failed else []
    if rejected:
        parts.append(f"{rejected:g}{'' if failed else of_rows} were rejected by the workflow")
    return " and ".join(parts)


def has_scores(line: Line) -> bool:
    return any(name.startswith(EVALUATION) for name in line)


def write_evaluations(joined: Path, folder: Path) -> None:
    """Rewrites the copy of the scores in `evaluator.fileroot` from the joined metrics, which a recovery may have
    cut."""
    scores = filter(has_scores, read_lines(joined))
    atomic_file.write_atomic(folder / FILE, dump_lines(scores))
