"""The order of rows: a permutation for each epoch, without the rows that are too long.

Which rows these are is known only after they were inspected, so that a number can be resolved once the rows before it,
and those of two batches from its own on, are known. That is enough to know the last batch of an epoch before it begins.
"""

import numpy as np
from numpy.typing import NDArray

from areal_like.data.row_table import KEPT, UNKNOWN, RowTable
from areal_like.process.seeds import derive_seed

AHEAD = 64
"""Rows that are inspected before they are needed."""
MAX_CACHED_EPOCHS = 2
CHUNK = 1024


def epoch_order(seed: int, epoch: int, num_rows: int, shuffle: bool) -> NDArray[np.int64]:
    if not shuffle:
        return np.arange(num_rows)
    return np.random.Generator(np.random.PCG64(derive_seed(seed, "data", epoch))).permutation(num_rows)


class KeptRows:
    """The rows of an order that are not too long, as far as they are known without a gap."""

    def __init__(self, order: NDArray[np.int64], table: RowTable) -> None:
        self._order, self._table = order, table
        self.num_kept = self._num_read = 0
        """The first `num_kept` rows of the order are final; those from `_num_read` on are still to be read."""

    def __getitem__(self, place: int) -> int:
        return int(self._order[place])

    def between(self, start: int, end: int) -> NDArray[np.int64]:
        """Fewer at the end of the epoch. They must have been read."""
        return self._order[start : min(end, self.num_kept)].copy()

    @property
    def is_complete(self) -> bool:
        return self._num_read == len(self._order)

    def read(self, count: int) -> bool:
        """Whether `count` rows, or all there are, could be read."""
        while self.num_kept < count and not self.is_complete:
            chunk = self._order[self._num_read : self._num_read + CHUNK]
            states = self._table.states[chunk]
            unknown = np.flatnonzero(states == UNKNOWN)
            known = int(unknown[0]) if len(unknown) else len(chunk)
            kept = chunk[:known][states[:known] == KEPT]
            self._order[self.num_kept : self.num_kept + len(kept)] = kept
            self.num_kept, self._num_read = self.num_kept + len(kept), self._num_read + known
            if known < len(chunk):
                return self.num_kept >= count
        return True

    def unknown(self, count: int) -> list[int]:
        """The next rows to inspect, so that `count` of them and some more can be read."""
        self.read(count + AHEAD)
        if self.num_kept >= count + AHEAD // 2:
            return []
        window = self._order[self._num_read : self._num_read + count + AHEAD - self.num_kept]
        rows: list[int] = window[self._table.states[window] == UNKNOWN].tolist()
        return rows


class RowOrder:
    """Group number -> row: one permutation per epoch, from the seed and the epoch.

    Numbers run through the whole run and have no end, since some groups are dropped. `begin` restarts the order at
    number `origin` with epoch `first_epoch`.
    """

    def __init__(self, seed: int, table: RowTable, batch_size: int, *, shuffle: bool, drop_last: bool) -> None:
        self._seed, self._table, self._batch_size = seed, table, batch_size
        self._shuffle, self._drop_last = shuffle, drop_last
        self.origin = self.first_epoch = 0
        self.num_kept: int | None = None
        """Rows that are not too long; None until the end of an epoch was seen."""
        self._epochs: dict[int, KeptRows] = {}

    def begin(self, origin: int, first_epoch: int) -> None:
        self.origin, self.first_epoch = origin, first_epoch

    @property
    def rows_per_epoch(self) -> int:
        """At most so many, until `num_kept` is known."""
        rows = len(self._table) if self.num_kept is None else self.num_kept
        return rows - rows % self._batch_size if self._drop_last else rows

    def epoch(self, number: int) -> int:
        return self._locate(number)[0]

    def row(self, number: int) -> int:
        """`is_known` must be true."""
        epoch, place = self._locate(number)
        return self._rows(epoch)[place]

    def is_known(self, number: int) -> bool:
        if not self.rows_per_epoch:
            return False
        epoch, place = self._locate(number)
        if self.num_kept is None and epoch > self.first_epoch:
            return self.is_known(self._last_of_first_epoch) and self.is_known(number)
        rows, needed = self._rows(epoch), self._needed(place)
        if not rows.read(needed):
            return False
        if self.num_kept is None and rows.num_kept < needed:  # the end of the epoch
            self.num_kept = rows.num_kept
            return self.is_known(number)
        return True

    def unknown(self, number: int) -> list[int]:
        """The next rows to inspect, so that this number is known, and a few more."""
        if not self.rows_per_epoch:
            return []
        epoch, place = self._locate(number if self.num_kept is not None else min(number, self._last_of_first_epoch))
        return self._rows(epoch).unknown(self._needed(place))

    @property
    def _last_of_first_epoch(self) -> int:
        return self.origin + self.rows_per_epoch - 1

    def _needed(self, place: int) -> int:
        return (place // self._batch_size + 2) * self._batch_size

    def _locate(self, number: int) -> tuple[int, int]:
        epochs, place = divmod(number - self.origin, self.rows_per_epoch)
        return self.first_epoch + epochs, place

    def _rows(self, epoch: int) -> KeptRows:
        if epoch not in self._epochs:
            while len(self._epochs) >= MAX_CACHED_EPOCHS:
                del self._epochs[min(self._epochs)]
            self._epochs[epoch] = KeptRows(epoch_order(self._seed, epoch, len(self._table), self._shuffle), self._table)
        return self._epochs[epoch]
