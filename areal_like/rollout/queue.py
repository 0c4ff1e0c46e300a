"""The queue of groups to be generated."""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from areal_like.data.row_order import RowOrder
from areal_like.data.row_table import RowTable
from areal_like.process.seeds import derive_seed
from areal_like.rollout.curriculum.curriculum import Curriculum, CurriculumState
from areal_like.rollout.curriculum.drawn_order import DrawnOrder
from areal_like.rollout.curriculum.prompts import unmixed
from areal_like.rollout.groups import Group, Leases
from areal_like.rollout.row_inspection import InspectedDataset
from areal_like.rollout.settings import RolloutSettings


class StepStart(NamedTuple):
    """The queue when a synchronous step started: its next number, groups to be generated again, and the curriculum."""

    step: int
    next_number: int
    again: list[Group]
    curriculum: CurriculumState


class GroupQueue:
    """The groups to be generated: first those to be generated again, by number, then new ones."""

    def __init__(self, settings: RolloutSettings, rows: RowTable, curriculum: Curriculum | None = None) -> None:
        self.curriculum = curriculum or Curriculum()
        self.row_order = RowOrder(
            settings.seed, rows, settings.batch_size, shuffle=settings.shuffle, drop_last=settings.drop_last
        )
        if (sampler := self.curriculum.sampler) is not None:
            prompts = self.curriculum.prompts or unmixed(len(rows))
            self.row_order = DrawnOrder(
                sampler, settings.seed, rows, prompts, settings.batch_size, drop_last=settings.drop_last
            )
        self._step_start: StepStart | None = None
        self.next_number = self._wanted = 0
        least = settings.batch_size if settings.drop_last else 1
        self.dataset = InspectedDataset("train_dataset", rows, self.unknown, least)
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

    def curriculum_state(self) -> CurriculumState:
        drawn = self.row_order.state(self.next_number) if isinstance(self.row_order, DrawnOrder) else {}
        return self.curriculum.state(drawn)

    def resume_curriculum(self, state: CurriculumState | None, step: int) -> None:
        """To be called once `next_number` is set. None: without earlier results."""
        if isinstance(self.row_order, DrawnOrder):
            self.row_order.resume(self.next_number, **({} if state is None else state.drawn))
        if state is not None:
            self.curriculum.resume(state, step)

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

    def pending(self, leases: Leases) -> list[Group]:
        """The groups that were taken and have no result: leased, or to be generated again."""
        return sorted([*self.again(), *(lease.group for lease in leases if lease.group.evaluation is None)])
