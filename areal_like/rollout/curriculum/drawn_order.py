"""The order of rows that are drawn at random, a batch at a time, from pools by their difficulty."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_like.data.row_order import KeptRows, RowOrder
from areal_like.data.row_table import RowTable
from areal_like.process.seeds import derive_seed
from areal_like.rollout.curriculum.pools import EASY, HARD, NORMAL, DifficultyPools


class Draw:
    """One batch: some easy and some hard rows, and normal ones for the rest; no row twice. Where a pool has too few
    rows, normal ones take their place, and then hard and easy ones. Rows are final once they were inspected."""

    def __init__(self, pools: DifficultyPools, table: RowTable, size: int, draws: np.random.Generator) -> None:
        keys = pools.settings
        self._size = size
        self._wanted = {EASY: int(size * keys.easy_fraction), HARD: int(size * keys.hard_fraction)}
        shuffled = {pool: draws.permutation(pools.rows_in(pool)) for pool in (EASY, HARD, NORMAL)}
        self._rows = {pool: KeptRows(rows, table) for pool, rows in shuffled.items()}

    def rows(self) -> list[int] | None:
        """Easy, hard and normal rows; fewer if there are no more. None while some are not inspected."""
        chosen: list[NDArray[np.int64]] = []
        for pool, start, count in self._parts():
            if not self._rows[pool].read(start + count):
                return None
            chosen.append(self._rows[pool].between(start, start + count))
        return [int(row) for part in chosen for row in part]

    def unknown(self) -> list[int]:
        """The rows to inspect."""
        for pool, start, count in self._parts():
            if not self._rows[pool].read(start + count):
                return self._rows[pool].unknown(start + count)
        return []

    def _parts(self) -> Any:
        """(pool, first, count): each is decided on once those before it were read."""
        left = self._size
        for pool in (EASY, HARD):
            yield pool, 0, self._wanted[pool]
            left -= min(self._wanted[pool], self._rows[pool].num_kept)
        yield NORMAL, 0, left
        left -= min(left, self._rows[NORMAL].num_kept)
        for pool in (HARD, EASY):
            start = min(self._wanted[pool], self._rows[pool].num_kept)
            yield pool, start, left
            left -= min(left, self._rows[pool].num_kept - start)


class DrawnOrder(RowOrder):
    """Group number -> row. A row may come again in the next batch. Only rows that are not taken yet have a number."""

    def __init__(self, pools: DifficultyPools, table: RowTable, batch_size: int, *, drop_last: bool) -> None:
        super().__init__(pools.settings.seed, table, batch_size, shuffle=True, drop_last=drop_last)
        self.pools = pools
        self._first = self._num_draws = 0
        self._drawn: list[int] = []
        self._open: Draw | None = None

    def row(self, number: int) -> int:
        row = self._drawn[number - self._first]
        del self._drawn[: number - self._first]
        self._first = number
        return row

    def is_known(self, number: int) -> bool:
        while number >= self._first + len(self._drawn):
            if self._open is None:
                self._open = self._next_draw()
            rows = self._open.rows()
            if rows is None:
                return False
            self._open = None
            self._drawn += rows
            if len(rows) < self._batch_size:
                self.pools.return_all()
            if not rows and self._table.is_complete and self._table.num_too_long == len(self._table):
                return False
        return True

    def unknown(self, number: int) -> list[int]:
        """Of the open draw. It opens none: the next batch is drawn once it is wanted, by what is known then."""
        return [] if self._open is None else self._open.unknown()

    def _next_draw(self) -> Draw:
        draws = np.random.Generator(np.random.PCG64(derive_seed(self.pools.settings.seed, "draw", self._num_draws)))
        self._num_draws += 1
        return Draw(self.pools, self._table, self._batch_size, draws)

    def state(self, next_number: int) -> dict[str, Any]:
        """For a checkpoint, with the rows that are drawn from this number on. A draw that is not complete is made
        again."""
        drawn = self._drawn[next_number - self._first :]
        return {"draws": self._num_draws - (self._open is not None), "drawn": drawn}

    def resume(self, next_number: int, draws: int = 0, drawn: Sequence[int] = ()) -> None:
        self._first, self._num_draws, self._drawn, self._open = next_number, draws, list(drawn), None
