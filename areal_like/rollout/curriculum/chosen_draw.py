"""One batch of rows that were chosen already, of which those that are too long are left out."""

import numpy as np
from numpy.typing import NDArray

from areal_like.data.row_order import KeptRows
from areal_like.data.row_table import RowTable


class ChosenDraw:
    """A checkpoint keeps them: what chose them may have counted them already."""

    def __init__(self, chosen: NDArray[np.int64], table: RowTable) -> None:
        self.chosen: list[int] | None = chosen.tolist()
        self._count, self._rows = len(chosen), KeptRows(chosen.copy(), table)

    def rows(self) -> list[int] | None:
        if not self._rows.read(self._count):
            return None
        kept: list[int] = self._rows.between(0, self._count).tolist()
        return kept

    def unknown(self) -> list[int]:
        return self._rows.unknown(self._count)
