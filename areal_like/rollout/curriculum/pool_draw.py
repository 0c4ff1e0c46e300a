"""One batch of rows from pools by their difficulty."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from areal_like.data.row_order import KeptRows
from areal_like.data.row_table import RowTable
from areal_like.rollout.curriculum.prompts import Prompts

NORMAL, EASY, HARD, ASIDE_EASY, ASIDE_HARD = range(5)
"""Pools of rows. Those that are set aside are not drawn."""


class PoolDraw:
    """Some easy and some hard rows, and normal ones for the rest; no prompt twice. Where a pool has too few rows,
    normal ones take their place, and then hard and easy ones. Rows are final once they were inspected. A prompt that
    the mix repeats has as many places in the draw."""

    chosen: list[int] | None = None

    def __init__(
        self,
        pool_P: NDArray[np.uint8],
        prompts: Prompts,
        wanted: dict[int, int],
        table: RowTable,
        size: int,
        draws: np.random.Generator,
    ) -> None:
        """`wanted`: how many rows of the easy and of the hard pool."""
        self._size, self._wanted = size, wanted
        pool_R = pool_P[prompts.prompt_R]
        shuffled = {pool: draws.permutation(np.flatnonzero(pool_R == pool)) for pool in (EASY, HARD, NORMAL)}
        self._rows = {pool: KeptRows(prompts.without_repeats(rows), table) for pool, rows in shuffled.items()}

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

    def _parts(self) -> Iterator[tuple[int, int, int]]:
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
