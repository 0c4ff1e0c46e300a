"""Hands rows to workers for inspection, shortly before groups of them start."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from areal_like.data.row_table import InspectedRow, RowTable
from areal_like.rollout.step_counts import StepCounts

TRAIN = "train"
AT_ONCE = 64
"""Rows of one call."""
LIMIT_S = 10.0
"""After this time another worker gets the row as well."""

InspectedRows = Mapping[str, Sequence[InspectedRow]]
"""By dataset."""


class InspectedDataset(NamedTuple):
    """`section`: its key, for messages. `unknown` returns the rows to be inspected next, `least` is the number of rows
    that a run needs."""

    section: str
    rows: RowTable
    unknown: Callable[[], list[int]]
    least: int = 1


class RowInspection:
    """Datasets by name; the first one is inspected first."""

    def __init__(self, datasets: Mapping[str, InspectedDataset], now: Callable[[], float]) -> None:
        self.datasets, self._now = datasets, now
        self._given: dict[tuple[str, int], tuple[str, float]] = {}
        """Worker and time of the rows that are being inspected."""

    def take(self, worker: str) -> dict[str, list[int]]:
        """Rows that this worker is to inspect, by dataset."""
        now = self._now()
        for name, dataset in self.datasets.items():
            rows = [row for row in dataset.unknown() if self._is_free(name, row, now)][:AT_ONCE]
            if rows:
                self._given |= {(name, row): (worker, now) for row in rows}
                return {name: rows}
        return {}

    def add(self, inspected: InspectedRows, counts: StepCounts) -> str:
        """Returns the reason why the run cannot continue, or an empty text."""
        for name, rows in inspected.items():
            section, table = self.datasets[name].section, self.datasets[name].rows
            for row in rows:
                self._given.pop((name, row.row), None)
                if not table.agrees(row):
                    return (
                        f"{section}: row {row.row} is not the same in all processes; they must read the same "
                        "files, and a task must return the same rows each time"
                    )
                if table.add(row) and row.is_too_long and name == TRAIN:
                    counts.add_too_long()
        return next((failure for name in inspected if (failure := self._failure(name))), "")

    def worker_started(self, worker: str) -> None:
        """Its previous incarnation inspects nothing more."""
        self._given = {row: given for row, given in self._given.items() if given[0] != worker}

    def _is_free(self, name: str, row: int, now: float) -> bool:
        given = self._given.get((name, row))
        return given is None or now - given[1] > LIMIT_S

    def _failure(self, name: str) -> str:
        section, rows, _, least = self.datasets[name]
        kept = len(rows) - rows.num_too_long
        if not rows.is_complete or kept >= least:
            return ""
        return (
            f"{section}.max_length: {rows.num_too_long} of {len(rows)} rows have more tokens; {kept} are left, and "
            f"{least} are needed; raise it"
        )
