"""Evaluations of a run: their metric lines, texts about them, and the copy of their scores."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from areal_like.observe.reading import DUE, EVALUATION, Line, dump_lines, is_evaluation, read_lines
from areal_like.process import atomic_file

FILE = "evaluations.jsonl"

HEADLINES = {"eval/score": "held-out", "eval/accuracy": "held-out accuracy", "eval/loss": "held-out loss"}
"""Metric that is shown of an evaluation (the first that it has) -> its title."""


def evaluation_lines(lines: Iterable[Line]) -> list[Line]:
    """One line per evaluation, in the order of steps. After a recovery a repeated evaluation replaces the first."""
    alone: list[Line] = []
    by_due: dict[float, Line] = {}
    for line in filter(is_evaluation, lines):
        if line.get(DUE) is None:
            alone.append(line)
        else:
            by_due[line[DUE]] = line
    return sorted([*alone, *by_due.values()], key=lambda line: int(line["step"]))


def headline_metric(values: Mapping[str, float | None]) -> str | None:
    """The metric that is shown of an evaluation; None if it has none of them."""
    return next((name for name in HEADLINES if name in values), None)


def has_value(values: Mapping[str, float | None], name: str) -> bool:
    value = values.get(name)
    return value is not None and math.isfinite(value)


def why_no_score(values: Mapping[str, float | None]) -> str:
    """Why an evaluation's value is null, as one clause."""
    rows, failed, rejected = (values.get(f"eval/{name}") or 0.0 for name in ("rows", "failed", "rejected"))
    if not failed + rejected:
        return "it is not finite"
    missing = " and ".join(_missing(failed, rejected))
    if failed + rejected >= rows:
        return f"of {rows:g} rows {missing}"
    return f"of {rows:g} rows {missing}, more than evaluator.max_failed_share allows; logs/episodes-*.log says why"


def score_remarks(values: Mapping[str, float | None]) -> str:
    """Remarks to the score: " (versions 50 to 52; of 500 rows 3 failed)"; empty if there are none."""
    rows, failed, rejected = (values.get(f"eval/{name}") or 0.0 for name in ("rows", "failed", "rejected"))
    oldest, newest = values.get("eval/version_min"), values.get("eval/version_max")
    parts = (
        [f"versions {oldest:g} to {newest:g}"] if oldest is not None and newest is not None and newest > oldest else []
    )
    if missing := _missing(failed, rejected):
        parts.append(f"of {rows:g} rows {' and '.join(missing)}")
    return f" ({'; '.join(parts)})" if parts else ""


def evaluation_text(step: int, values: Mapping[str, float | None]) -> str | None:
    """A line about an evaluation; None if it has no metric to show."""
    name = headline_metric(values)
    if name is None:
        return None
    when = "at the start" if step == 0 else f"after step {step}"
    if not has_value(values, name):
        return f"{HEADLINES[name]}: no score {when}: {why_no_score(values)}"
    return f"{HEADLINES[name]} {values[name]:.3f} {when}{score_remarks(values)}"


def _missing(failed: float, rejected: float) -> list[str]:
    """Numbers of rows that are in no mean, with the reasons."""
    counts = {"failed": failed, "were rejected by the workflow": rejected}
    return [f"{count:g} {what}" for what, count in counts.items() if count]


def has_scores(line: Line) -> bool:
    return any(name.startswith(EVALUATION) for name in line)


def write_evaluations(joined: Path, folder: Path) -> None:
    """Rewrites the copy of the scores in `evaluator.fileroot` from the joined metrics, which a recovery may have
    cut."""
    scores = filter(has_scores, read_lines(joined))
    atomic_file.write_atomic(folder / FILE, dump_lines(scores))
