"""The plans of a sweep's points, shown below its table: the first one on a screen and what others have beside it, or
all of them whole."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from areal_like.config.loaded import Loaded
from launcher.commands.run import plan_text
from launcher.plan.plan import Plan
from launcher.plan.render_base import several
from launcher.sweep.report import numbers

FULL_PLANS = 8
"""Points whose plans are printed whole; of further ones a line each."""


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
    """What follows the table."""
    if whole:
        yield from (one.text(whole=True) for one in planned[:FULL_PLANS])
        for one in planned[FULL_PLANS:]:
            yield f"point {one.number}: {one.trial} is planned (--dry-run=json shows all of it)"
        return
    yield from (one.text(whole=False) for one in planned[:1])
    if others := planned[1:]:
        yield ""
        yield from _beside(planned[0], others)
        yield f"the plans of {several(len(others), 'other point')}: --dry-run=full"


def _beside(first: PlannedPoint, others: list[PlannedPoint]) -> Iterator[str]:
    """Obstacles and warnings that the first point does not have, each once."""
    holders: dict[str, list[int]] = {}
    for one in others:
        for text in _remarks(one.plan):
            holders.setdefault(text, []).append(one.number)
    own = set(_remarks(first.plan))
    for text, points in holders.items():
        if text not in own:
            yield f"point{'s' if len(points) > 1 else ''} {numbers(points)}: {first.loaded.redactor.everywhere(text)}"


def _remarks(plan: Plan) -> list[str]:
    against = [f"cannot start: {problem.text()}" for problem in plan.obstacles]
    return [*against, *(f"warning: {warning}" for warning in plan.warnings)]
