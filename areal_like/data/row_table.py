"""What is known of the rows of a dataset: their hashes, and which are too long."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

UNKNOWN, KEPT, TOO_LONG = 0, 1, 2
"""States of a row."""

Blob = bytes | memoryview


class InspectedRow(NamedTuple):
    """The hash is that of the row as JSON."""

    row: int
    hash: int
    is_too_long: bool


class RowTable:
    """State and hash of each row, nine bytes. Memory that holds nothing yet is not used by the process."""

    def __init__(self, num_rows: int) -> None:
        self.states = np.zeros(num_rows, np.uint8)
        self.num_known = self.num_too_long = 0
        self._hashes = np.zeros(num_rows, np.uint64)

    def __len__(self) -> int:
        return len(self.states)

    def hash_of(self, row: int) -> int:
        return int(self._hashes[row])

    def agrees(self, inspected: InspectedRow) -> bool:
        """Whether the row is unknown, or known with this hash."""
        return self.states[inspected.row] == UNKNOWN or self.hash_of(inspected.row) == inspected.hash

    def add(self, inspected: InspectedRow) -> bool:
        """Returns whether the row was unknown."""
        row = inspected.row
        if self.states[row] != UNKNOWN:
            return False
        self.states[row] = TOO_LONG if inspected.is_too_long else KEPT
        self._hashes[row] = inspected.hash
        self.num_known += 1
        self.num_too_long += inspected.is_too_long
        return True

    @property
    def is_complete(self) -> bool:
        return self.num_known == len(self)

    def blobs(self) -> list[bytes]:
        """For a checkpoint: all states, and the hashes of known rows."""
        return [self.states.tobytes(), self._hashes[self.states != UNKNOWN].tobytes()]

    def restore(self, blobs: Sequence[Blob]) -> None:
        states, hashes = blobs
        self.states = np.frombuffer(states, np.uint8).copy()
        known = self.states != UNKNOWN
        self._hashes[known] = np.frombuffer(hashes, np.uint64)
        self.num_known, self.num_too_long = int(known.sum()), int((self.states == TOO_LONG).sum())


def hash_text(row_hash: int) -> str:
    return f"{row_hash:016x}"


def other_rows_message(was: str, now: str) -> str:
    """The message for training rows that are not those of the checkpoint, by their digests."""
    return (
        f"the data has changed since the checkpoint (its digest was {was} and is now {now}); resume with the same "
        "data, or set recover.skip_dataloader=true to start it from the beginning"
    )
