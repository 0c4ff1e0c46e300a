"""End of a run: writes `summary.json` and `curve.svg` to its directory, and makes the text for the user.

    print(finish(run.directory, "done", 0, started, attempts=1))

A run's objective for sweeps is the last value of the metric that `objective` names; without that key the last
`eval/score`, else `eval/accuracy`, else `eval/loss`, else `reward/mean` or `train/loss`. A run that only measures, on
random tokens or with `bench`, shows its throughput instead of a curve, which is also its objective.
"""

import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from areal_like.config.allocation.models import only_evaluates
from areal_like.config.problems import plural
from areal_like.observe.charts import Series, svg_chart, terminal_chart
from areal_like.observe.diagnosis import UNJUDGED
from areal_like.observe.evaluations import (
    benchmark_lines,
    evaluation_lines,
    evaluation_text,
    has_value,
    headline_metric,
    score_remarks,
    short_error,
    why_no_score,
)
from areal_like.observe.metrics import BENCHMARK, STEP_ERROR, STEP_ERROR_GROUPS
from areal_like.observe.next_steps import model_uses, next_steps, shown_path
from areal_like.observe.reading import EVALUATION, JOINED, Line, read_lines, read_metrics, values_of
from areal_like.observe.text import format_duration
from areal_like.observe.throughput import throughput, throughput_line, throughput_table
from areal_like.process import atomic_file
from areal_like.process.checkpoint_files import complete_checkpoints
from areal_like.process.run import Run, open_run

SUMMARY, CURVE = "summary.json", "curve.svg"
CHART_WIDTH = 72
NONE: Mapping[str, Sequence[Line]] = MappingProxyType({})
OBJECTIVE_FALLBACKS = ("eval/score", "eval/accuracy", "eval/loss", "reward/mean", "train/loss")
"""Metrics for a run's objective if the key `objective` is not set; the first that has values."""


class RunRecord:
    """A run's metrics by step, and its evaluations, read from its directory."""

    def __init__(
        self, metrics: Sequence[Line], evaluated: Sequence[Line], benchmarks: Mapping[str, Sequence[Line]] = NONE
    ) -> None:
        """`benchmarks`: name -> evaluations, with the metrics of `valid_dataset`'s."""
        self.metrics, self.evaluations, self.benchmarks = metrics, evaluated, benchmarks

    @property
    def steps(self) -> int:
        """Completed steps."""
        return max((line["step"] for line in self.metrics if "train/loss" in line or "perf/step_s" in line), default=0)

    def points(self, name: str) -> list[tuple[int, float]]:
        """Steps with their values of a metric, where it has any."""
        lines, name = self._lines_of(name) if name.startswith(EVALUATION) else (self.metrics, name)
        return [(line["step"], line[name]) for line in lines if line.get(name) is not None]

    def _lines_of(self, name: str) -> tuple[Sequence[Line], str]:
        """The evaluations that have this metric, and its name there."""
        benchmark, _, rest = name.removeprefix(EVALUATION).partition("/")
        if benchmark in self.benchmarks:
            return self.benchmarks[benchmark], f"{EVALUATION}{rest}"
        return self.evaluations, name

    def last(self, name: str) -> float | None:
        """Last value; for an evaluation metric that of the last evaluation, even if that is none."""
        if name.startswith(EVALUATION):
            lines, name = self._lines_of(name)
            values = [line[name] for line in lines if name in line]
            return values[-1] if values else None
        points = self.points(name)
        return points[-1][1] if points else None

    def objective_name(self, configured: str | None) -> str | None:
        """Name of the run's objective metric."""
        return configured or next((name for name in OBJECTIVE_FALLBACKS if self._has(name)), None)

    def _has(self, name: str) -> bool:
        """Whether the metric has values; for an evaluation metric also null ones."""
        if name.startswith(EVALUATION):
            lines, name = self._lines_of(name)
            return any(name in line for line in lines)
        return bool(self.points(name))

    def objective(self, configured: str | None) -> float | None:
        """Last value of the objective; None if it has none."""
        name = self.objective_name(configured)
        return None if name is None else self.last(name)


def read_run_record(run_dir: str | Path) -> RunRecord:
    lines = read_lines(Path(run_dir) / JOINED)
    return RunRecord(read_metrics(run_dir), evaluation_lines(lines), benchmark_lines(lines))


def summarize_run(
    run_dir: str | Path, outcome: str, exit_code: int, started: float, attempts: int, error: str | None = None
) -> str:
    """Writes the files; returns the text to show. `outcome`: such as done, failed or stopped. `started`: seconds since
    1970."""
    run = open_run(run_dir, own_class=False)
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
        "score_missing": _why_missing(record, run.config.evaluator.max_failed_share),
        "evaluated_rows": _evaluated_rows(record),
        "objective": record.objective(objective),
        "objective_metric": record.objective_name(objective),
        "without_reward": _without_reward(record.metrics),
        "failed_groups": _failed_groups(read_lines(run.directory / JOINED)),
        "benchmarks": {name: lines[-1].get("eval/score") for name, lines in record.benchmarks.items()},
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
    return "\n".join(_lines(run, summary, curves, last, _speed(run, record) if measures else _benchmarks(record)))


def _benchmarks(record: RunRecord) -> list[str]:
    """The last evaluation of each benchmark."""
    texts = (evaluation_text(0, {**lines[-1], BENCHMARK: name}) for name, lines in record.benchmarks.items())
    return [text for text in texts if text is not None]


def _speed(run: Run, record: RunRecord) -> list[str]:
    """Throughput lines, for a run that only measures."""
    table = throughput_table(record.metrics) if run.config.bench else []
    return [throughput_line(record.metrics), *(["", *(f"  {line}" for line in table)] if table else [])]


def last_model(checkpoints: Path) -> Path | None:
    """Folder of the newest complete checkpoint, a Hugging Face directory."""
    complete = complete_checkpoints(checkpoints)
    return complete[-1][1] if complete else None


def curves_of(record: RunRecord) -> list[Series]:
    """Curves of a run: rewards and held-out score; for a reward model its accuracy; else the losses."""
    if record.points("reward/mean"):
        shown = (("reward", "reward/mean", False), ("held-out score", "eval/score", True))
    elif record.points("train/accuracy"):
        shown = (("accuracy", "train/accuracy", False), ("held-out accuracy", "eval/accuracy", True))
    else:
        shown = (("loss", "train/loss", False), ("held-out loss", "eval/loss", True))
    curves = [Series(title, record.points(name), marked) for title, name, marked in shown]
    return [series for series in curves if series.points]


def _why_missing(record: RunRecord, max_failed_share: float) -> str | None:
    """Why the last evaluation has no score."""
    last = record.evaluations[-1] if record.evaluations else {}
    name = headline_metric(last)
    return None if name is None or has_value(last, name) else why_no_score(last, max_failed_share)


def _evaluated_rows(record: RunRecord) -> dict[str, int] | None:
    """Rows of the last evaluation, and how many of them failed or were rejected."""
    last = record.evaluations[-1] if record.evaluations else {}
    counts = ("rows", "failed", "rejected")
    return {name: int(last[f"eval/{name}"]) for name in counts} if "eval/rows" in last else None


def _failed_groups(lines: Sequence[Line]) -> dict[str, Any] | None:
    """Training groups of which every attempt failed, and how many of them have the most frequent error."""
    failed = sum(line.get("rollout/failed") or 0 for line in lines)
    if not failed:
        return None
    errors: Counter[str] = Counter()
    for line in lines:
        if text := short_error(line.get(STEP_ERROR)):
            errors[text] += int(line.get(STEP_ERROR_GROUPS) or 0)
    error, count = max(errors.items(), key=lambda item: item[1], default=(None, 0))
    return {"failed": int(failed), "error": error, "error_groups": count}


def _without_reward(lines: Sequence[Line]) -> dict[str, int] | None:
    """Answers of training that had no reward, and all answers; None if each had one. Older lines count samples."""
    missing = sum(int(line.get(UNJUDGED) or 0) for line in lines)
    answers = sum(int(line.get("rollout/answers", line.get("rollout/samples")) or 0) for line in lines)
    return {"answers": missing, "of": answers} if missing and answers else None


def _needs_remark(last: Line) -> bool:
    """Whether an evaluation's number alone would mislead."""
    return bool(score_remarks(last)) or not has_value(last, headline_metric(last) or "")


def _lines(
    run: Run, summary: dict[str, Any], curves: Sequence[Series], last: Line | None, speed: Sequence[str]
) -> list[str]:
    """`last`: the last evaluation."""
    steps, attempts = summary["steps"], summary["attempts"]
    again = f", {attempts} attempts" if attempts > 1 else ""
    what = "evaluation" if only_evaluates(run.config) else plural(steps, "step")
    lines = [
        "",
        f"{summary['outcome']}: {what} in {format_duration(summary['seconds'])}{again}",
    ]
    if summary["error"]:
        lines.append(summary["error"])
    lines += speed
    ends_without = last is not None and not has_value(last, headline_metric(last) or "")
    from_to = [f"{one.name} {_from_to(one, one.marked and ends_without)}" for one in reversed(curves)]
    if from_to:
        lines.append("; ".join(from_to))
    if (unjudged := summary["without_reward"]) is not None and from_to:
        share = 1 - unjudged["answers"] / unjudged["of"]
        lines.append(
            f"reward is that of the {share:.0%} of the answers that have one: that of {unjudged['answers']} failed or "
            "was None, which is no 0; see logs/episodes-*.log"
        )
    if curves and last is not None and _needs_remark(last):
        text = evaluation_text(last["step"], last, run.config.evaluator.max_failed_share)
        lines += [text] if text else []
    if from_to:
        lines.append("")
        columns = min(CHART_WIDTH, shutil.get_terminal_size((CHART_WIDTH + 2, 24)).columns - 2)
        lines += [f"  {line}" for line in terminal_chart(curves, max(24, columns))]
    logs, facts = run.directory / "logs", list[tuple[str, str]]()
    made: list[tuple[str, str]] = []
    if summary["model"]:
        model = Path(summary["model"])
        made = [("model", f"{shown_path(model)}  (a Hugging Face directory)"), *model_uses(run, model)]
    if curves:
        facts.append(("curve", shown_path(run.directory / CURVE)))
    if summary["last"]:
        facts.append(("metrics", shown_path(run.directory / JOINED)))
    if summary["exit_code"]:
        facts.append(("logs", shown_path(logs)))
    ahead = next_steps(run, summary["exit_code"], summary["steps"])
    facts = [*made[:1], *facts, *made[1:], *ahead]
    if summary["score_missing"] and summary["evaluated_rows"] and summary["evaluated_rows"]["failed"]:
        facts = [("logs", shown_path(logs / "episodes-*.log")), *(fact for fact in facts if fact[0] != "logs")]
    width = max((len(name) for name, _ in facts), default=0)
    return [*lines, "", *(f"{name:<{width}}  {text}".rstrip() for name, text in facts)]


def _from_to(one: Series, ends_without: bool) -> str:
    """First and last value; for a noisy line means of a few disjoint values at its ends. If the last evaluation has no
    value, none is shown instead of an older one."""
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
