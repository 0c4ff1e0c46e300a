"""When and on what the model is evaluated, and what came of it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from areal_like.observe.reading import DUE
from areal_like.process.seeds import derive_seed
from areal_like.rollout.groups import Group
from areal_like.rollout.settings import RolloutSettings
from areal_like.rollout.step_metrics import evaluation_metrics
from areal_like.training.timers import Timer

Scores = dict[int, dict[str, float]]
"""Metrics of an evaluation by version of the weights: each answer counts for the version of its first token."""


class Evaluation:
    """One pass over the rows, due for a version."""

    def __init__(self, version: int, groups: list[Group]) -> None:
        self.version = version
        self.num_rows = len(groups)
        self.waiting = groups[::-1]
        self.open = len(groups)
        self.failed: list[Group] = []
        self.facts: dict[int, list[dict[str, Any]]] = {}

    @property
    def num_running(self) -> int:
        return self.open - len(self.waiting)

    def take(self, most: int) -> list[Group]:
        return [self.waiting.pop() for _ in range(min(most, len(self.waiting)))]

    def put_back(self, group: Group) -> None:
        self.waiting.append(group)

    def finish(self, group: Group) -> None:
        self.open -= 1
        for fact in group.facts:
            self.facts.setdefault(fact.get("first_version", fact["version_min"]), []).append(fact)
        group.forget_results()

    def give_up(self, group: Group) -> None:
        self.open -= 1
        self.failed.append(group)

    def skip(self) -> None:
        """A row that the workflow does not want counts for nothing."""
        self.open -= 1

    def scores(self) -> Scores:
        """What failed counts for the version that the evaluation was due for."""
        found = {version: evaluation_metrics(facts) for version, facts in sorted(self.facts.items())}
        if self.failed:
            found.setdefault(self.version, {})["eval/failed"] = len(self.failed)
        return {version: {DUE: self.version, **metrics} for version, metrics in found.items()}


class Evaluations:
    """One after the other; where a new one falls due while an older one has not begun, the older one is left out."""

    def __init__(
        self, settings: RolloutSettings, num_rows: int, steps_per_epoch: int, now: Callable[[], float]
    ) -> None:
        self._settings = settings
        wanted = settings.evaluation_rows
        self._rows = self._choose(num_rows, num_rows if wanted < 0 else min(wanted, num_rows))
        clock = settings.evaluation_clock
        self._timer = Timer(clock, steps_per_epoch, now) if clock is not None and self._rows else None
        self.due: int | None = None
        self.current: Evaluation | None = None

    def _choose(self, num_rows: int, wanted: int) -> list[int]:
        """The same rows each time, in an order that lets any part of them stand for the whole."""
        generator = np.random.Generator(np.random.PCG64(derive_seed(self._settings.seed, "evaluation")))
        return [int(row) for row in generator.permutation(num_rows)[:wanted]]

    @property
    def idle(self) -> bool:
        return self.due is None and self.current is None

    def ask_for(self, version: int) -> None:
        if self._timer is not None:
            self.due = version

    def step_completed(self, step: int, last: bool) -> None:
        if self._timer is not None and (self._timer.is_due(step) or last):
            self.due = step

    def begin(self, version: int) -> Evaluation | None:
        """The evaluation under way, or the one that is due now that `version` is served."""
        if self.current is None and self.due is not None and version >= self.due:
            groups = [
                Group(
                    number=number,
                    row=row,
                    seed=derive_seed(self._settings.sampling_seed, "evaluation", row),
                    n=self._settings.evaluation_samples,
                    evaluation=self.due,
                )
                for number, row in enumerate(self._rows)
            ]
            self.current, self.due = Evaluation(self.due, groups), None
        return self.current

    def of(self, group: Group) -> Evaluation | None:
        """The evaluation that a group belongs to; None where it was broken off."""
        current = self.current
        return current if current is not None and current.version == group.evaluation else None

    def close(self) -> Evaluation:
        """The one under way, which is complete."""
        current = self.current
        assert current is not None
        assert current.open == 0
        self.current = None
        return current

    def clear(self) -> None:
        self.due = self.current = None

    def state(self, step: int) -> dict[str, Any]:
        """As of so many completed steps: only what is due for their weights can be evaluated again."""
        open_versions = [self.due, self.current.version if self.current else None]
        return {"timer": self._timer.state() if self._timer else None, "due": step if step in open_versions else None}

    def restore(self, state: dict[str, Any]) -> None:
        if self._timer is not None:
            if state["timer"] is not None:
                self._timer.restore(state["timer"])
            self.due = state["due"]
