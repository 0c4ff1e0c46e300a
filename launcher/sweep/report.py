"""Texts of a sweep: its announcement, problems of its points, plans of a dry run, the final table of results."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.loaded import Loaded
from areal_like.config.problems import plural, started_nothing_text
from launcher.commands.run import plan_text
from launcher.plan.plan import Plan
from launcher.sweep.job import JobRecord
from launcher.sweep.plan import SweepPlan, direction_of
from launcher.sweep.points import SweepPoints
from launcher.sweep.request import Check, SweepRequest

FULL_PLANS = 8
"""Points whose plans are printed in full; of further ones a line each."""

MAX_LISTED_PROBLEMS = 50


def check_points(points: SweepPoints, sample: Sequence[int], check: Check) -> list[str]:
    """Each problem once, with its points, then their number; empty where there are none."""
    points_of: dict[str, list[int]] = {}
    for number in sample:
        for problem in check(points.overrides(points.values(number))):
            holders = points_of.setdefault(problem.text(), [])
            if number not in holders[-1:]:
                holders.append(number)
    if not points_of:
        return []
    lines = [f"{_holders(points, holders, len(sample))}{text}" for text, holders in points_of.items()]
    if len(lines) > MAX_LISTED_PROBLEMS:
        lines[MAX_LISTED_PROBLEMS:] = [f"... and {len(lines) - MAX_LISTED_PROBLEMS} more"]
    return [*lines, started_nothing_text(len(points_of))]


def _holders(points: SweepPoints, holders: Sequence[int], all_of_them: int) -> str:
    if len(holders) == all_of_them:
        return "every point: " if all_of_them > 1 else ""
    if not points.optimizing:
        return f"point{'s' if len(holders) > 1 else ''} {numbers(holders)}: "
    corners = ["{" + " ".join(f"{key}={value}" for key, value in points.values(one).items()) + "}" for one in holders]
    return f"corner {', '.join(corners[:3])}{f' and {len(corners) - 3} more' if len(corners) > 3 else ''}: "


def opening_lines(request: SweepRequest, plan: SweepPlan, checked: int, directory: Path) -> list[str]:
    """What the sweep is about to do."""
    settings, count = plan.settings, len(plan.points)
    share = f"all {count}" if checked == count else f"{checked} of the {count}"
    if plan.points.optimizing:
        trials = settings.options.get("n_trials")
        aim = f"to {direction_of(settings.options)} the objective"
        lines = [
            f"sweep {request.trial}: hydra/sweeper={settings.sweeper} chooses {trials or 'the'} points, {aim}",
            f"checked: {share} corners of its ranges; every point is checked before it starts",
        ]
    else:
        lines = [f"sweep {request.trial}: {count} point{'s' if count > 1 else ''}"]
        if checked < count:
            lines.append(f"checked: {share} points, with every single value; the others are checked before they start")
    if not request.dry_run:
        return [*lines, f"hydra/launcher={settings.launcher}, records in {directory}"]
    lines.append("planned in this process; nothing is started")
    if settings.launcher != "basic":
        lines[-1] += f" (a start uses hydra/launcher={settings.launcher})"
    if plan.points.optimizing:
        lines.append("a plan has no objective: the sweeper gets 0.0 for every point")
    return lines


def closing_lines(rows: Sequence[JobRecord], plan: SweepPlan, code: int) -> list[str]:
    """The table, the points that never started, and the best one."""
    options = plan.settings.options
    lines = ["", table(rows)] if rows else ["", "no point was started"]
    if left := points_not_started(rows, plan):
        lines.append(f"not started: point{'s' if len(left) > 1 else ''} {numbers(left)}")
    if code == 1 and plan.points.optimizing:
        rate = options.get("max_failure_rate")
        allowed = (
            "" if rate is None else f" (hydra.sweeper.max_failure_rate={rate}: the share of a batch that may fail)"
        )
        lines.append(f"hydra/sweeper={plan.settings.sweeper} stopped after {len(rows)} points{allowed}")
    scores = [(row.objective, row) for row in rows if row.state == "done" and row.objective is not None]
    if plan.points.optimizing and scores:
        best = max if direction_of(options) == "maximize" else min
        objective, row = best(scores, key=lambda score: score[0])
        lines.append(f"best: {row.trial}, objective {_text(objective)}")
    return lines


def points_not_started(rows: Sequence[JobRecord], plan: SweepPlan) -> list[int]:
    """The points that never started, where they are known."""
    if plan.points.optimizing:
        return []
    return sorted(set(range(len(plan.points))) - {row.number for row in rows})


def table(rows: Sequence[JobRecord]) -> str:
    """A row per point: trial, swept values, objective, further results, and how it ended."""
    keys = list(dict.fromkeys(key for row in rows for key in row.values))
    extras = list(dict.fromkeys(key for row in rows for key in row.summary))
    objective = any(row.objective is not None for row in rows)
    head = ["point", "trial", *keys, *(["objective"] if objective else []), *extras, "result"]
    lines = [head]
    for row in rows:
        middle = [_text(row.objective)] if objective else []
        middle += [_text(row.summary.get(key)) for key in extras]
        values = [_short(row.values.get(key, "")) for key in keys]
        lines.append([str(row.number), row.trial, *values, *middle, _result(row)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]) for line in lines
    )


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value + 0.0:.6g}" if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    """Long numbers are rounded; the records have all digits."""
    try:
        return f"{float(text):.6g}" if len(text) > 12 else text
    except ValueError:
        return text


def _result(row: JobRecord) -> str:
    first = row.message.strip().splitlines()[:1]
    time = f" in {row.seconds:.1f} s" if row.state == "done" else ""
    state = "did not end" if row.state == "running" else row.state
    return f"{state}{time}" + (f": {first[0]}" if first else "")


def numbers(values: Sequence[int]) -> str:
    """`0-2, 5` for 0, 1, 2, 5."""
    groups: list[list[int]] = []
    for value in sorted(values):
        if groups and value == groups[-1][-1] + 1:
            groups[-1].append(value)
        else:
            groups.append([value])
    return ", ".join(_span(group) for group in groups)


def _span(group: Sequence[int]) -> str:
    if len(group) > 2:
        return f"{group[0]}-{group[-1]}"
    return ", ".join(str(value) for value in group)


class PlannedPoint(NamedTuple):
    number: int
    trial: str
    loaded: Loaded
    plan: Plan

    def text(self, whole: bool) -> str:
        shown: str = self.loaded.redactor.everywhere(plan_text(self.plan, whole))
        return f"\npoint {self.number}: {self.trial}\n{shown}".rstrip("\n")

    def data(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.loaded.redactor.everywhere(self.plan.to_json())
        return shown


def plan_lines(planned: list[PlannedPoint], whole: bool) -> Iterator[str]:
    """The plans below the table."""
    if whole:
        yield from (one.text(whole=True) for one in planned[:FULL_PLANS])
        for one in planned[FULL_PLANS:]:
            yield f"point {one.number}: {one.trial} is planned (--dry-run=json shows all of it)"
        return
    yield from (one.text(whole=False) for one in planned[:1])
    if others := planned[1:]:
        yield ""
        yield from _beside(planned[0], others)
        yield f"the plans of {plural(len(others), 'other point')}: --dry-run=full"


def _beside(first: PlannedPoint, others: list[PlannedPoint]) -> Iterator[str]:
    """Problems and warnings that the first point does not have, each once."""
    holders: dict[str, list[int]] = {}
    for one in others:
        for text in _remarks(one.plan):
            holders.setdefault(text, []).append(one.number)
    own = set(_remarks(first.plan))
    for text, points in holders.items():
        if text not in own:
            yield f"point{'s' if len(points) > 1 else ''} {numbers(points)}: {first.loaded.redactor.everywhere(text)}"


def _remarks(plan: Plan) -> list[str]:
    against = [f"cannot start: {problem.text()}" for problem in plan.problems]
    return [*against, *(f"warning: {warning}" for warning in plan.warnings)]
