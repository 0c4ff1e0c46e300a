"""Which rows are in each batch of supervised training: a permutation for each epoch, without those that are left out.

How many these are is known once an epoch was inspected; the last batch of an epoch is known as such before it is used.
"""

import numpy as np
from numpy.typing import NDArray

from areal_like.data.row_order import KeptRows, epoch_order
from areal_like.data.row_table import RowTable


class BatchSampler:
    """Shuffles the rows in every epoch, the same way for the same seed."""

    def __init__(self, table: RowTable, batch_size: int, shuffle: bool, drop_last: bool, seed: int) -> None:
        self._table, self._batch_size, self._seed = table, batch_size, seed
        self._shuffle, self._drop_last = shuffle, drop_last
        self._origin, self.first_epoch = 0, 0
        self.num_kept: int | None = None
        """Rows that are not left out; None until the end of an epoch was seen."""
        self._epoch, self._rows = -1, KeptRows(np.arange(0), table)

    @property
    def steps_per_epoch(self) -> int:
        """At most so many, until `num_kept` is known."""
        rows = len(self._table) if self.num_kept is None else self.num_kept
        return rows // self._batch_size if self._drop_last else -(-rows // self._batch_size)

    def begin(self, step: int, first_epoch: int, drawn: int) -> None:
        """Sets that after `step` completed steps `drawn` batches count as drawn since the beginning of this epoch; by
        default one per step since the first epoch."""
        self._origin, self.first_epoch, self._epoch = step - drawn, first_epoch, -1

    def drawn(self, step: int) -> int:
        """Batches since the beginning of the first epoch, after `step` completed steps."""
        return step - self._origin

    def unknown(self, step: int) -> list[int]:
        """The next rows to inspect, until there are none: then `rows` can be called. The step is that after `step`
        completed ones."""
        epoch, index = divmod(self.drawn(step), self.steps_per_epoch)
        rows, needed = self._rows_of(epoch), (index + 2) * self._batch_size
        unknown = rows.unknown(needed)
        if not unknown and self.num_kept is None and rows.num_kept < needed:  # the end of the epoch
            self.num_kept = rows.num_kept
        return unknown

    def rows(self, step: int) -> NDArray[np.int64]:
        """Of the step after `step` completed ones."""
        epoch, index = divmod(self.drawn(step), self.steps_per_epoch)
        return self._rows_of(epoch).between(index * self._batch_size, (index + 1) * self._batch_size)

    def _rows_of(self, epoch: int) -> KeptRows:
        if epoch != self._epoch:
            order = epoch_order(self._seed, self.first_epoch + epoch, len(self._table), self._shuffle)
            self._epoch, self._rows = epoch, KeptRows(order, self._table)
        return self._rows
