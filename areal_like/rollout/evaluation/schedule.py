"""When evaluations are due, and which one runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_like.data.row_order import KeptRows
from areal_like.data.row_table import RowTable
from areal_like.process.interval_timer import IntervalTimer
from areal_like.process.seeds import derive_seed
from areal_like.rollout.evaluation.evaluated_rows import EvaluatedRows
from areal_like.rollout.evaluation.evaluation import Evaluation
from areal_like.rollout.evaluation.progress import EvaluationProgress
from areal_like.rollout.groups import Group, Lease
from areal_like.rollout.row_inspection import InspectedDataset
from areal_like.rollout.settings import RolloutSettings, RunLength


def evaluation_order(seed: int, name: str, num_rows: int) -> NDArray[np.int64]:
    """The same rows each time, in random order, so that any first part is a fair sample."""
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, *_stream(name))))
    return generator.permutation(num_rows)


def _stream(name: str) -> tuple[str, ...]:
    """Of the random numbers of `valid_dataset` or a benchmark."""
    return ("evaluation", name) if name else ("evaluation",)


class EvaluationPlan:
    """The chosen rows of a dataset, and when they are evaluated. `due`: the version to be evaluated next."""

    def __init__(
        self, evaluated: EvaluatedRows, seed: int, table: RowTable, length: RunLength, now: Callable[[], float]
    ) -> None:
        self.evaluated, self._table = evaluated, table
        limit = evaluated.num_examples
        self._num_rows = len(table) if limit < 0 else min(limit, len(table))
        self._rows = KeptRows(evaluation_order(seed, evaluated.name, len(table)), table)
        self.timer = IntervalTimer(evaluated.clock, length.steps_per_epoch, now)
        self.due: int | None = None
        self.last_due: int | None = None
        """The step after which it was due last, of the steps of this attempt."""
        self.completed = -1
        """The version of the last complete evaluation; -1 before the first one."""

    def unknown(self) -> list[int]:
        """All rows of an evaluation are inspected before it begins."""
        return self._rows.unknown(self._num_rows)

    @property
    def is_read(self) -> bool:
        return self._rows.read(self._num_rows)

    @property
    def rows(self) -> list[int]:
        """Those that are not too long, once all are inspected."""
        return [self._rows[place] for place in range(min(self._num_rows, self._rows.num_kept))]

    def begin(self) -> Evaluation:
        """The evaluation that is due."""
        assert self.due is not None
        version, self.due, evaluated = self.due, None, self.evaluated
        groups = [
            Group(
                number=number,
                row=row,
                row_hash=self._table.hash_of(row),
                seed=derive_seed(evaluated.sampling_seed, *_stream(self.evaluated.name), row),
                n=evaluated.n_samples,
                evaluation=version,
                evaluated=evaluated,
            )
            for number, row in enumerate(self.rows)
        ]
        return Evaluation(evaluated, version, groups)


class EvaluationSchedule:
    """Runs one evaluation at a time: of those that are due, that of the rows whose last one is the oldest, so that each
    gets its turn however long the others take. An evaluation that has not started is skipped when the next one of the
    same rows is due, or when one of newer weights begins on servers that keep these.

    The evaluations before the first and after the last step use a single version, the others only if the settings say
    so, or have servers of their own: servers keep these weights until the evaluation is complete."""

    def __init__(
        self, settings: RolloutSettings, tables: Mapping[str, RowTable], length: RunLength, now: Callable[[], float]
    ) -> None:
        """`tables`: split -> its rows."""
        self._settings, self._last_step, self._tables = settings, length.total_steps, tables
        self.plans = [
            EvaluationPlan(each, settings.seed, tables[each.split], length, now)
            for each in settings.evaluated
            if len(tables[each.split])
        ]
        self.current: Evaluation | None = None
        self.progress = EvaluationProgress(now, settings.max_steps == 0)
        self.saved: dict[str, Sequence[dict[str, Any]]] = {}
        """Name of a benchmark (empty: `valid_dataset`) -> answers of an earlier start, until its evaluation begins."""

    def set_length(self, length: RunLength) -> None:
        """The number of rows that are not too long is known now."""
        self._last_step = length.total_steps
        for plan in self.plans:
            plan.timer.steps_per_epoch = length.steps_per_epoch

    @property
    def datasets(self) -> dict[str, InspectedDataset]:
        evaluated = {plan.evaluated.split: (plan.evaluated.key, plan.unknown) for plan in self.plans}
        nothing: tuple[str, Callable[[], list[int]]] = ("", list)  # of rows without an interval
        return {
            split: InspectedDataset(key, table, unknown)
            for split, table in self._tables.items()
            for key, unknown in [evaluated.get(split, nothing)]
        }

    @property
    def waits_for_rows(self) -> bool:
        """Whether the next evaluation cannot begin because its rows are not inspected."""
        return self.current is None and self._next is not None and not self._next.is_read

    @property
    def _next(self) -> EvaluationPlan | None:
        """The plan whose evaluation begins next."""
        due = [plan for plan in self.plans if plan.due is not None]
        return min(due, key=lambda plan: (plan.completed, plan.due), default=None)

    @property
    def due(self) -> int | None:
        """The version of the evaluation that begins next."""
        return None if self._next is None else self._next.due

    @property
    def idle(self) -> bool:
        return self.due is None and self.current is None

    @property
    def held_version(self) -> int | None:
        """The newest weights that servers may load now, those for evaluations alone if there are any; None for any. In
        synchronous mode no newer weights come before an evaluation on the servers of training is complete."""
        if self._settings.synchronous and not self._settings.num_evaluators:
            return None
        wanted = (self.due, None if self.current is None else self.current.version)
        return min((each for each in wanted if each is not None and self._is_pinned(each)), default=None)

    def _is_pinned(self, version: int) -> bool:
        """Whether its evaluations use these weights alone."""
        if self._settings.num_evaluators or self._settings.evaluation_pin:
            return True
        return version in (0, self._last_step)

    @property
    def awaited_versions(self) -> list[int]:
        """Those whose weights must still be there when servers for evaluations alone come to them."""
        return sorted(self._versions) if self._settings.num_evaluators else []

    @property
    def _versions(self) -> set[int]:
        """Of the running evaluation, and of those that are due."""
        versions = {plan.due for plan in self.plans if plan.due is not None}
        return versions | ({self.current.version} if self.current is not None else set())

    @property
    def rows_left(self) -> int:
        """Unfinished rows of the running evaluation."""
        return 0 if self.current is None else self.current.open

    def request(self, version: int) -> None:
        for plan in self.plans:
            plan.due = version

    def step_completed(self, step: int, last: bool) -> None:
        for plan in self.plans:
            if plan.timer.is_due(step) or last:
                plan.due = plan.last_due = step

    def due_after(self, step: int) -> list[str]:
        """Names of the rows whose evaluation was due after this step, the newest one. The trainer may ask again."""
        return [plan.evaluated.name for plan in self.plans if plan.last_due == step]

    def startable(self, version: int) -> int:
        """How many groups may start while `version` is served: of the running evaluation, or of the one that is due."""
        current, following = self.current, self._next
        if current is not None:
            return max(0, min(current.evaluated.concurrent - current.num_running, len(current.waiting)))
        if following is None or following.due is None or version < following.due or self.waits_for_rows:
            return 0
        if following.evaluated.name in self.saved:
            return 0  # it begins with `begin_saved`
        return min(following.evaluated.concurrent, len(following.rows))

    def begin_saved(self) -> Evaluation | None:
        """Begins the next evaluation if it has saved answers and its rows are known. Raises ValueError if these are of
        other rows."""
        following = self._next
        if self.current is not None or following is None or not following.is_read:
            return None
        if (lines := self.saved.pop(following.evaluated.name, None)) is None:
            return None
        self._begin(following).restore(lines)
        return self.current

    def _begin(self, plan: EvaluationPlan) -> Evaluation:
        """Servers do not go back to older weights."""
        self.current = current = plan.begin()
        for each in self.plans:
            if each.due is not None and each.due < current.version and self._is_pinned(each.due):
                each.due = None
        return current

    def take(self, count: int) -> list[Group]:
        """At most `count` groups of the running evaluation, or of the one that is due, which begins."""
        if self.current is None:
            assert self._next is not None
            self._begin(self._next)
        assert self.current is not None
        return self.current.take(count)

    def leased(self, lease: Lease) -> None:
        """Notes the servers for evaluations alone."""
        if self._settings.num_evaluators and (evaluation := self.of(lease.group)) is not None:
            evaluation.servers.add(lease.server)

    def of(self, group: Group) -> Evaluation | None:
        """The evaluation of a group; None if it was cancelled."""
        current = self.current
        if current is None or (current.version, current.evaluated) != (group.evaluation, group.evaluated):
            return None
        return current

    def close(self) -> None:
        """The running evaluation is complete."""
        assert self.current is not None
        assert self.current.open == 0
        for plan in self.plans:
            if plan.evaluated == self.current.evaluated:
                plan.completed = self.current.version
        self.current = None

    def clear(self) -> None:
        self.current = None
        for plan in self.plans:
            plan.due = None

    def state(self, step: int) -> dict[str, Any]:
        """The state after `step` completed steps. Only an evaluation of these weights can be repeated."""
        states = {
            plan.evaluated.name: {
                "timer": plan.timer.state(),
                "due": self._open(plan, step),
                "completed": plan.completed,
            }
            for plan in self.plans
        }
        return {"by_name": states}

    def _open(self, plan: EvaluationPlan, step: int) -> int | None:
        current = self.current
        running = current.version if current is not None and current.evaluated == plan.evaluated else None
        return step if step in (plan.due, running) else None

    def restore(self, state: dict[str, Any]) -> None:
        """Of rows that the checkpoint does not know, the intervals begin now."""
        # Older checkpoints knew the rows of valid_dataset only.
        states = state["by_name"] if "by_name" in state else {"": state} if state["timer"] is not None else {}
        for plan in self.plans:
            if (known := states.get(plan.evaluated.name)) is not None:
                plan.timer.restore(known["timer"])
                plan.due, plan.completed = known["due"], known.get("completed", -1)
