"""Evaluations: when they are due, on which rows, and their results."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from areal_like.data.row_order import KeptRows
from areal_like.data.row_table import RowTable
from areal_like.observe.metrics import ERROR_ROWS
from areal_like.observe.reading import DUE
from areal_like.process.interval_timer import IntervalTimer
from areal_like.process.seeds import derive_seed
from areal_like.rollout.decisions import Accept, Drop, Fail, Requeue
from areal_like.rollout.groups import Group
from areal_like.rollout.row_inspection import InspectedDataset
from areal_like.rollout.settings import RolloutSettings, RunLength
from areal_like.rollout.step_metrics import evaluation_metrics, is_score

MAX_SHOWN_ROWS = 8
"""Rows whose answers are shown in trackers."""


class Evaluation:
    """One pass over the rows for a weight version."""

    def __init__(self, version: int, groups: list[Group]) -> None:
        self.version = version
        self.num_rows = len(groups)
        self.waiting = groups[::-1]
        self.open = len(groups)
        self.failed: list[Group] = []
        self.num_rejected = 0
        self.facts: list[dict[str, Any]] = []
        self.shown: list[Group] = []
        """Copies of a few groups, of the same rows each time."""

    @property
    def num_running(self) -> int:
        return self.open - len(self.waiting)

    def take(self, count: int) -> list[Group]:
        """At most `count` groups."""
        return [self.waiting.pop() for _ in range(min(count, len(self.waiting)))]

    def apply(self, decision: Accept | Drop | Requeue | Fail) -> None:
        group = decision.group
        match decision:
            case Accept(_, result):
                self.open -= 1
                self.facts += result.facts
                if group.number < MAX_SHOWN_ROWS:
                    self.shown.append(replace(group, facts=result.facts, blob=result.blob))
            case Drop():
                self.open -= 1
                self.num_rejected += 1
            case Requeue(_, _, failure):
                group.count_failure(failure)
                self.waiting.append(group)
            case Fail(_, result):
                self.open -= 1
                group.count_failure(result)
                self.failed.append(group)

    @property
    def versions(self) -> tuple[int, int]:
        """The oldest and the newest weights that generated."""
        oldest = min((fact["version_min"] for fact in self.facts), default=self.version)
        newest = max((fact["version_max"] for fact in self.facts), default=self.version)
        return oldest, newest

    @property
    def most_frequent_error(self) -> tuple[str, int]:
        """The error and its number of rows; of equally frequent errors that of the first row. Empty and 0 if no row
        failed."""
        counts = Counter(group.error for group in sorted(self.failed))
        return max(counts.items(), key=lambda item: item[1], default=("", 0))

    def metrics(self, max_failed_share: float) -> dict[str, float]:
        """Scores are NaN where too many rows are missing."""
        oldest, newest = self.versions
        missing = len(self.failed) + self.num_rejected
        means = evaluation_metrics(self.facts) if self.facts else {"eval/score": math.nan, "eval/samples": 0.0}
        if missing > max_failed_share * self.num_rows:
            means = {name: math.nan if is_score(name) else value for name, value in means.items()}
        _, error_rows = self.most_frequent_error
        return {
            DUE: self.version,
            "eval/version_min": oldest,
            "eval/version_max": newest,
            "eval/rows": self.num_rows,
            "eval/failed": len(self.failed),
            "eval/rejected": self.num_rejected,
            ERROR_ROWS: error_rows,
            **means,
        }

    def record(self) -> dict[str, Any]:
        """For the ledger."""
        return {
            "version": self.version,
            "rows": self.num_rows,
            "failed": len(self.failed),
            "rejected": self.num_rejected,
            "answers": len(self.facts),
            "versions": list(self.versions),
        }

    @property
    def failure(self) -> str:
        """The reason why the run cannot continue after it."""
        if len(self.failed) < self.num_rows:
            return ""
        return (
            f"valid_dataset: not one of {self.num_rows} rows could be evaluated for version {self.version}; the first "
            f"error was: {self.failed[0].error}"
        )


class Evaluations:
    """Runs one evaluation at a time. An evaluation that has not started is skipped when the next one is due.

    The evaluations before the first and after the last step use a single version, the others only if the settings say
    so: servers keep these weights until the evaluation is complete."""

    def __init__(self, settings: RolloutSettings, rows: RowTable, length: RunLength, now: Callable[[], float]) -> None:
        self._settings, self._last_step, self._table = settings, length.total_steps, rows
        limit, clock = settings.evaluation_rows, settings.evaluation_clock
        self._num_rows = len(rows) if limit < 0 else min(limit, len(rows))
        # The same rows each time, in random order, so that any first part is a fair sample.
        generator = np.random.Generator(np.random.PCG64(derive_seed(settings.seed, "evaluation")))
        self._rows = KeptRows(generator.permutation(len(rows)), rows)
        self._timer = IntervalTimer(clock, length.steps_per_epoch, now) if clock is not None and len(rows) else None
        self.due: int | None = None
        self.current: Evaluation | None = None

    def set_length(self, length: RunLength) -> None:
        """The number of rows that are not too long is known now."""
        self._last_step = length.total_steps
        if self._timer is not None:
            self._timer.steps_per_epoch = length.steps_per_epoch

    @property
    def datasets(self) -> dict[str, InspectedDataset]:
        return {"valid": InspectedDataset(self._table, self._unknown)}

    def _unknown(self) -> list[int]:
        """All rows of an evaluation are inspected before it begins."""
        return [] if self._timer is None else self._rows.unknown(self._num_rows)

    @property
    def waits_for_rows(self) -> bool:
        return self.due is not None and not self._rows.read(self._num_rows)

    @property
    def idle(self) -> bool:
        return self.due is None and self.current is None

    @property
    def held_version(self) -> int | None:
        """The newest weights that servers may load now; None for any. In synchronous mode no newer weights come before
        an evaluation is complete."""
        version = self.current.version if self.current is not None else self.due
        if version is None or self._settings.synchronous:
            return None
        return version if self._settings.evaluation_pin or version in (0, self._last_step) else None

    @property
    def rows_left(self) -> int:
        """Unfinished rows of the running evaluation."""
        return 0 if self.current is None else self.current.open

    def request(self, version: int) -> None:
        if self._timer is not None:
            self.due = version

    def step_completed(self, step: int, last: bool) -> None:
        if self._timer is not None and (self._timer.is_due(step) or last):
            self.due = step

    def startable(self, version: int) -> int:
        """How many groups may start while `version` is served: of the running evaluation, or of the one that is due."""
        limit, current = self._settings.evaluation_concurrent, self.current
        if current is not None:
            return max(0, min(limit - current.num_running, len(current.waiting)))
        if self.due is None or version < self.due or self.waits_for_rows:
            return 0
        return min(limit, self._num_rows, self._rows.num_kept)

    def take(self, count: int) -> list[Group]:
        """At most `count` groups of the running evaluation, or of the one that is due, which begins."""
        if self.current is None:
            assert self.due is not None
            self.current, self.due = self._begin(self.due), None
        return self.current.take(count)

    def _begin(self, version: int) -> Evaluation:
        rows = [self._rows[place] for place in range(min(self._num_rows, self._rows.num_kept))]
        groups = [
            Group(
                number=number,
                row=row,
                row_hash=self._table.hash_of(row),
                seed=derive_seed(self._settings.sampling_seed, "evaluation", row),
                n=self._settings.evaluation_samples,
                evaluation=version,
            )
            for number, row in enumerate(rows)
        ]
        return Evaluation(version, groups)

    def of(self, group: Group) -> Evaluation | None:
        """The evaluation of a group; None if it was cancelled."""
        current = self.current
        return current if current is not None and current.version == group.evaluation else None

    def close(self) -> None:
        """The running evaluation is complete."""
        assert self.current is not None
        assert self.current.open == 0
        self.current = None

    def clear(self) -> None:
        self.due = self.current = None

    def state(self, step: int) -> dict[str, Any]:
        """The state after `step` completed steps. Only an evaluation of these weights can be repeated."""
        open_versions = [self.due, self.current.version if self.current else None]
        return {"timer": self._timer.state() if self._timer else None, "due": step if step in open_versions else None}

    def restore(self, state: dict[str, Any]) -> None:
        if self._timer is not None:
            if state["timer"] is not None:
                self._timer.restore(state["timer"])
            self.due = state["due"]
