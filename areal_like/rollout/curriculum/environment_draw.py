"""One batch of rows of which each is drawn by itself: first its environment, then any row of it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from areal_like.data.row_table import TOO_LONG, UNKNOWN, RowTable

MAX_ROUNDS = 100
"""After these, a row is one of those that are not known to be too long."""


class EnvironmentDraw:
    """A row may come more than once. One that is too long is drawn again, in the same environment."""

    chosen: list[int] | None = None

    def __init__(
        self, rows: Sequence[NDArray[np.int64]], rates: Sequence[float], table: RowTable, size: int, seed: int
    ) -> None:
        """`rows`: those of each environment that may be drawn."""
        self._rows, self._rates = rows, np.asarray(rates, float)
        self._table, self._size, self._seed = table, size, seed

    def rows(self) -> list[int] | None:
        """None while some are not inspected. Empty where no environment has any."""
        drawn = self._draw()
        return None if self._unknown(drawn) else drawn.tolist()

    def unknown(self) -> list[int]:
        return self._unknown(self._draw())

    def _unknown(self, drawn: NDArray[np.int64]) -> list[int]:
        rows: list[int] = np.unique(drawn[self._table.states[drawn] == UNKNOWN]).tolist()
        return rows

    def _draw(self) -> NDArray[np.int64]:
        """From the beginning, with what is known of the rows by now."""
        possible = [rows[self._table.states[rows] != TOO_LONG] for rows in self._rows]
        rates = np.where([len(rows) > 0 for rows in possible], self._rates, 0.0)
        if not rates.sum():
            return np.empty(0, np.int64)
        draws = np.random.Generator(np.random.PCG64(self._seed))
        sources = draws.choice(len(rates), size=self._size, p=rates / rates.sum())
        drawn, open_places = np.empty(self._size, np.int64), np.arange(self._size)
        for round_number in range(MAX_ROUNDS + 1):
            among = possible if round_number == MAX_ROUNDS else self._rows
            shares = draws.random(self._size)
            for place in open_places:
                rows = among[sources[place]]
                drawn[place] = rows[int(shares[place] * len(rows))]
            open_places = open_places[self._table.states[drawn[open_places]] == TOO_LONG]
            if not len(open_places):
                break
        return drawn
