"""The queue of groups to be generated."""

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from areal_like.data.row_order import RowOrder
from areal_like.data.row_table import RowTable
from areal_like.process.seeds import derive_seed
from areal_like.rollout.curriculum.admission import mean_reward
from areal_like.rollout.curriculum.drawn_order import DrawnOrder
from areal_like.rollout.curriculum.pools import DifficultyPools
from areal_like.rollout.groups import Group
from areal_like.rollout.row_inspection import InspectedDataset
from areal_like.rollout.settings import RolloutSettings


class CurriculumState(NamedTuple):
    """For a checkpoint: the rows that are drawn, and the pool of each row."""

    drawn: dict[str, Any]
    pool_R: bytes


class StepStart(NamedTuple):
    """The queue when a synchronous step started: its next number, groups to be generated again, and the curriculum."""

    step: int
    next_number: int
    again: list[Group]
    curriculum: CurriculumState | None


class GroupQueue:
    """The groups to be generated: first those to be generated again, by number, then new ones."""

    def __init__(self, settings: RolloutSettings, rows: RowTable) -> None:
        self.pools: DifficultyPools | None = None
        """Of a curriculum that draws rows."""
        self.row_order = RowOrder(
            settings.seed, rows, settings.batch_size, shuffle=settings.shuffle, drop_last=settings.drop_last
        )
        if settings.curriculum.draws:
            self.pools = DifficultyPools(settings.curriculum, len(rows))
            self.row_order = DrawnOrder(self.pools, rows, settings.batch_size, drop_last=settings.drop_last)
        self._step_start: StepStart | None = None
        self.next_number = self._wanted = 0
        self.dataset = InspectedDataset(rows, self.unknown, settings.batch_size if settings.drop_last else 1)
        self._batch_size = settings.batch_size
        self._rows, self._seed, self._n_samples = rows, settings.sampling_seed, settings.n_samples
        self._again: list[tuple[int, Group]] = []

    def has(self, count: int) -> bool:
        """Whether so many groups can be taken: the rows of new ones must be known."""
        new = count - len(self._again)
        self._wanted = self.next_number + max(0, new - 1)
        return new <= 0 or self.row_order.is_known(self._wanted)

    def unknown(self) -> list[int]:
        """The rows to be inspected next."""
        return self.row_order.unknown(max(self._wanted, self.next_number))

    def take(self) -> Group:
        if self._again:
            return heapq.heappop(self._again)[1]
        self.next_number += 1
        return self.make(self.next_number - 1)

    def put_back(self, group: Group) -> None:
        heapq.heappush(self._again, (group.number, group))

    def priority(self, group: Group) -> int:
        """Smaller ones are generated first. The next training batch waits for the oldest group. An evaluation comes
        after the training groups that have started and those of one more batch: it delays none of them, and does not
        wait for ever."""
        return 1 + (group.number if group.evaluation is None else self.next_number + self._batch_size)

    def make(self, number: int, row: int | None = None, tries: int = 0) -> Group:
        """The group of this number. `row` and `tries` are given when it is restored."""
        row = self.row_order.row(number) if row is None else row
        return Group(
            number=number,
            row=row,
            row_hash=self._rows.hash_of(row),
            seed=derive_seed(self._seed, "sampling", number),
            n=self._n_samples,
            tries=tries,
        )

    def start_pools(self, labels: str) -> None:
        """From the results of an earlier run; empty: without."""
        if self.pools is not None and labels:
            self.pools.start(labels)

    def observe(self, group: Group) -> None:
        """A finished group shows how difficult its row is."""
        if self.pools is not None:
            self.pools.observe(group.row, mean_reward(group.facts))

    def curriculum_state(self) -> CurriculumState | None:
        if self.pools is None or not isinstance(self.row_order, DrawnOrder):
            return None
        return CurriculumState(self.row_order.state(self.next_number), self.pools.pool_R.tobytes())

    def resume_curriculum(self, state: CurriculumState | None, step: int) -> None:
        """To be called once `next_number` is set. None: without earlier results."""
        if self.pools is None or not isinstance(self.row_order, DrawnOrder):
            return
        self.row_order.resume(self.next_number, **({} if state is None else state.drawn))
        if state is not None:
            self.pools.resume(np.frombuffer(state.pool_R, np.uint8), step)

    def mark_step(self, step: int) -> None:
        """A synchronous step starts."""
        if self.step_start(step) is None:
            self._step_start = StepStart(step, self.next_number, list(self.again()), self.curriculum_state())

    def step_start(self, step: int) -> StepStart | None:
        """None if it has not started."""
        start = self._step_start
        return start if start is not None and start.step == step else None

    def again(self) -> Iterator[Group]:
        """The groups to be generated again, by number."""
        return (group for _, group in sorted(self._again))
