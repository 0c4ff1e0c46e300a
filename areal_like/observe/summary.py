"""The end of a run: `summary.json` and `curve.svg` in its directory, and what the user is told.

    print(finish(run.directory, "done", 0, started, attempts=1))

What a sweeper gets as a run's objective is, in this order: the last value of the metric that `objective` names; without
such a key the last `eval/score`, else `eval/accuracy`, else `eval/loss`, else `reward/mean` or `train/loss`. A run that
only measures, on random tokens or with `bench`, tells its throughput instead of a curve, and that is its objective.
"""

import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from areal_like.observe.chart import terminal_chart
from areal_like.observe.charts import Series
from areal_like.observe.evaluations import evaluation_text, has_value, headline_metric, score_remarks, why_no_score
from areal_like.observe.next_steps import model_uses, next_steps, shown_path
from areal_like.observe.reading import JOINED, Line, values_of
from areal_like.observe.record import RunRecord, read_run_record
from areal_like.observe.svg import svg_chart
from areal_like.observe.text import format_duration
from areal_like.observe.throughput import throughput, throughput_line, throughput_table
from areal_like.process import atomic_file
from areal_like.process.checkpoint_files import complete_checkpoints
from areal_like.process.run import Run, open_run

SUMMARY, CURVE = "summary.json", "curve.svg"
CHART_WIDTH = 72


def summarize_run(
    run_dir: str | Path, outcome: str, exit_code: int, started: float, attempts: int, error: str | None = None
) -> str:
    """`outcome` is a word such as done, failed or stopped; `started` is in seconds since 1970. Returns the text to
    show."""
    run = open_run(run_dir)
    record = read_run_record(run_dir)
    is_fake = run.config.train_dataset.fake is not None
    measures = run.config.bench or is_fake
    objective = run.config.objective or ("perf/tokens_per_s" if measures else None)
    curves = [] if measures else curves_of(record)
    summary = {
        "outcome": outcome,
        "exit_code": exit_code,
        "error": error,
        "run": str(run.directory),
        "run_id": run.run_id,
        "steps": record.steps,
        "attempts": attempts,
        "seconds": round(time.time() - started, 3),
        "model": None if is_fake else _text_of(last_model(run.checkpoints)),  # random tokens teach nothing
        "score": record.last("eval/score"),
        "score_missing": _why_missing(record),
        "evaluated_rows": _evaluated_rows(record),
        "objective": record.objective(objective),
        "objective_metric": record.objective_name(objective),
        "curve": record.points("eval/score"),
        "rewards": record.points("reward/mean"),
        "throughput": throughput(record.metrics),
        "last": values_of(record.metrics[-1]) if record.metrics else {},
    }
    atomic_file.write_atomic(run.directory / SUMMARY, orjson.dumps(summary, option=orjson.OPT_INDENT_2) + b"\n")
    if curves:
        title = f"{run.config.experiment_name}/{run.config.trial_name}"
        atomic_file.write_atomic(run.directory / CURVE, svg_chart(title, curves))
    last = record.evaluations[-1] if record.evaluations else None
    return "\n".join(_lines(run, summary, curves, last, _speed(run, record) if measures else []))


def _speed(run: Run, record: RunRecord) -> list[str]:
    """What a run is for that learns nothing."""
    table = throughput_table(record.metrics) if run.config.bench else []
    return [throughput_line(record.metrics), *(["", *(f"  {line}" for line in table)] if table else [])]


def last_model(checkpoints: Path) -> Path | None:
    """The folder of the newest complete checkpoint, which is a Hugging Face directory."""
    found = complete_checkpoints(checkpoints)
    return found[-1][1] if found else None


def curves_of(record: RunRecord) -> list[Series]:
    """What a run's curve shows: rewards and held-out score; a reward model's accuracy, else the losses."""
    if record.points("reward/mean"):
        shown = (("reward", "reward/mean", False), ("held-out score", "eval/score", True))
    elif record.points("train/accuracy"):
        shown = (("accuracy", "train/accuracy", False), ("held-out accuracy", "eval/accuracy", True))
    else:
        shown = (("loss", "train/loss", False), ("held-out loss", "eval/loss", True))
    found = [Series(title, record.points(name), marked) for title, name, marked in shown]
    return [series for series in found if series.points]


def _why_missing(record: RunRecord) -> str | None:
    """Why the last evaluation has no score."""
    last = record.evaluations[-1] if record.evaluations else {}
    name = headline_metric(last)
    return None if name is None or has_value(last, name) else why_no_score(last)


def _evaluated_rows(record: RunRecord) -> dict[str, int] | None:
    """How many rows the last evaluation took, and what became of those that are not in its score."""
    last = record.evaluations[-1] if record.evaluations else {}
    counts = ("rows", "failed", "rejected")
    return {name: int(last[f"eval/{name}"]) for name in counts} if "eval/rows" in last else None


def _needs_words(last: Line) -> bool:
    """Whether the bare number of an evaluation would mislead."""
    return bool(score_remarks(last)) or not has_value(last, headline_metric(last) or "")


def _lines(
    run: Run, summary: dict[str, Any], curves: Sequence[Series], last: Line | None, speed: Sequence[str]
) -> list[str]:
    """`last` is the last evaluation."""
    steps, attempts = summary["steps"], summary["attempts"]
    again = f", {attempts} attempts" if attempts > 1 else ""
    lines = [
        "",
        f"{summary['outcome']}: {steps} step{'s' * (steps != 1)} in {format_duration(summary['seconds'])}{again}",
    ]
    if summary["error"]:
        lines.append(summary["error"])
    lines += speed
    ends_without = last is not None and not has_value(last, headline_metric(last) or "")
    from_to = [f"{one.name} {_from_to(one, one.marked and ends_without)}" for one in reversed(curves)]
    if from_to:
        lines.append("; ".join(from_to))
    if curves and last is not None and (text := evaluation_text(last["step"], last)) and _needs_words(last):
        lines.append(text)
    if from_to:
        lines.append("")
        columns = min(CHART_WIDTH, shutil.get_terminal_size((CHART_WIDTH + 2, 24)).columns - 2)
        lines += [f"  {line}" for line in terminal_chart(curves, max(24, columns))]
    facts: list[tuple[str, str]] = []
    made: list[tuple[str, str]] = []
    if summary["model"]:
        model = Path(summary["model"])
        made = [("model", f"{shown_path(model)}  (a Hugging Face directory)"), *model_uses(run, model)]
    if curves:
        facts.append(("curve", shown_path(run.directory / CURVE)))
    if summary["last"]:
        facts.append(("metrics", shown_path(run.directory / JOINED)))
    if summary["exit_code"]:
        facts.append(("logs", shown_path(run.directory / "logs")))
    ahead = next_steps(run, summary["exit_code"], summary["steps"])
    facts = [*made[:1], *facts, *made[1:], *ahead]
    width = max((len(name) for name, _ in facts), default=0)
    return [*lines, "", *(f"{name:<{width}}  {text}".rstrip() for name, text in facts)]


def _from_to(one: Series, ends_without: bool) -> str:
    """The first and the last value; of a noisy line the means of some at its ends, which share none. Where the last
    evaluation has no value, an older one does not stand for it."""
    values = [value for _, value in one.points if math.isfinite(value)]
    count = 1 if one.marked else max(1, min(5, len(values) // 2))
    if not values:
        return "nan"
    if ends_without:
        return f"{values[0]:.3g} -> none"
    first, last = sum(values[:count]) / count, sum(values[-count:]) / count
    return f"{first:.3g} -> {last:.3g}" if len(values) > 1 else f"{last:.3g}"


def _text_of(path: Path | None) -> str | None:
    return None if path is None else str(path)
