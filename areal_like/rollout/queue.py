"""The order of rows, and the queue of groups to be generated."""

import heapq
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from areal_like.process.seeds import derive_seed
from areal_like.rollout.groups import Group
from areal_like.rollout.settings import RolloutSettings, RunLength

MAX_CACHED_PERMUTATIONS = 2


class RowOrder:
    """Group number -> row: one permutation per epoch, from the seed and the epoch.

    Numbers run through the whole run and have no end, since some groups are dropped. `begin` restarts the order at
    number `origin` with epoch `first_epoch`.
    """

    def __init__(self, seed: int, rows: int, rows_per_epoch: int, shuffle: bool) -> None:
        self.seed, self.rows, self.rows_per_epoch, self.shuffle = seed, rows, rows_per_epoch, shuffle
        self.origin = self.first_epoch = 0
        self._permutations: dict[int, NDArray[np.int64]] = {}

    def begin(self, origin: int, first_epoch: int) -> None:
        self.origin, self.first_epoch = origin, first_epoch

    def epoch(self, number: int) -> int:
        return self.first_epoch + (number - self.origin) // self.rows_per_epoch

    def row(self, number: int) -> int:
        place = (number - self.origin) % self.rows_per_epoch
        return int(self._permutation(self.epoch(number))[place]) if self.shuffle else place

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._permutations:
            while len(self._permutations) >= MAX_CACHED_PERMUTATIONS:
                del self._permutations[min(self._permutations)]
            generator = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "data", epoch)))
            self._permutations[epoch] = generator.permutation(self.rows)
        return self._permutations[epoch]


class GroupQueue:
    """The groups to be generated: first those to be generated again, by number, then new ones."""

    def __init__(self, settings: RolloutSettings, length: RunLength, next_number: int = 0) -> None:
        self.row_order = RowOrder(settings.seed, length.rows, length.rows_per_epoch, settings.shuffle)
        self.next_number = next_number
        self._seed, self._n_samples = settings.sampling_seed, settings.n_samples
        self._again: list[tuple[int, Group]] = []

    def take(self) -> Group:
        if self._again:
            return heapq.heappop(self._again)[1]
        self.next_number += 1
        return self.make(self.next_number - 1)

    def put_back(self, group: Group) -> None:
        heapq.heappush(self._again, (group.number, group))

    def make(self, number: int, row: int | None = None, tries: int = 0) -> Group:
        """The group of this number. `row` and `tries` are given when it is restored."""
        return Group(
            number=number,
            row=self.row_order.row(number) if row is None else row,
            seed=derive_seed(self._seed, "sampling", number),
            n=self._n_samples,
            tries=tries,
        )

    def again(self) -> Iterator[Group]:
        """The groups to be generated again, by number."""
        return (group for _, group in sorted(self._again))
