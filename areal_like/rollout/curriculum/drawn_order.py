"""The order of rows that a sampler draws, a batch at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from areal_like.data.row_order import RowOrder
from areal_like.data.row_table import TOO_LONG, RowTable
from areal_like.rollout.curriculum.base import OpenDraw, RowSampler
from areal_like.rollout.curriculum.chosen_draw import ChosenDraw
from areal_like.rollout.curriculum.prompts import Prompts


class DrawnOrder(RowOrder):
    """Group number -> row. A row may come again in the next batch. Only rows that are not taken yet have a number."""

    def __init__(
        self,
        sampler: RowSampler,
        seed: int,
        table: RowTable,
        prompts: Prompts,
        batch_size: int,
        *,
        drop_last: bool,
    ) -> None:
        super().__init__(seed, table, batch_size, shuffle=True, drop_last=drop_last)
        self._sampler, self._prompts = sampler, prompts
        self._first = self._num_draws = 0
        self._drawn: list[int] = []
        self._open: OpenDraw | None = None

    def row(self, number: int) -> int:
        row = self._drawn[number - self._first]
        del self._drawn[: number - self._first]
        self._first = number
        return row

    def is_known(self, number: int) -> bool:
        while number >= self._first + len(self._drawn):
            if self._open is None:
                self._open = self._sampler.begin(self._table, self._prompts, self._batch_size, self._num_draws)
                self._num_draws += 1
            rows = self._open.rows()
            if rows is None:
                return False
            self._open = None
            self._drawn += rows
            self._sampler.ended(len(rows), self._batch_size)
            if not rows and (self._table.states[self._prompts.first_P] == TOO_LONG).all():
                return False
        return True

    def unknown(self, number: int) -> list[int]:
        """Of the open draw. It opens none: the next batch is drawn once it is wanted, by what is known then."""
        return [] if self._open is None else self._open.unknown()

    def state(self, next_number: int) -> dict[str, Any]:
        """For a checkpoint, with the rows that are drawn from this number on. A draw that is not complete is made
        again, or has its chosen rows there."""
        drawn = self._drawn[next_number - self._first :]
        if self._open is not None and (chosen := self._open.chosen) is not None:
            return {"draws": self._num_draws, "drawn": drawn, "chosen": chosen}
        return {"draws": self._num_draws - (self._open is not None), "drawn": drawn}

    def resume(
        self, next_number: int, draws: int = 0, drawn: Sequence[int] = (), chosen: Sequence[int] | None = None
    ) -> None:
        self._first, self._num_draws, self._drawn = next_number, draws, list(drawn)
        self._open = None if chosen is None else ChosenDraw(np.array(chosen, np.int64), self._table)
