"""Rows of a dataset as tokens, for supervised training: each is read, hashed and tokenized shortly before its use."""

import logging
from collections.abc import Iterable, Sequence

import xxhash

from areal_like.config.problems import ConfigError
from areal_like.data.checked_rows import INVALID, CheckedRows, InvalidRow, row_hash
from areal_like.data.row_table import InspectedRow, RowTable
from areal_like.data.row_tokenizer import TokenSequences, joined
from areal_like.data.tasks.base import Row

MAX_SHOWN = 10

log = logging.getLogger(__name__)


class TokenizedRows:
    """Rows that are invalid or too long are left out: in the table they have the same state."""

    def __init__(self, rows: CheckedRows) -> None:
        self.rows, self.table = rows, RowTable(len(rows))
        self._num_invalid = 0
        self._ahead: dict[int, TokenSequences] = {}
        """Of inspected rows that are not used yet."""

    def inspect(self, numbers: Iterable[int]) -> None:
        """Adds unknown rows to the table."""
        readable: dict[int, Row] = {}
        hashes: dict[int, int] = {}
        for number in numbers:
            try:
                row = self.rows.rows[number]
                hashes[number] = row_hash(row)
            except (ValueError, TypeError, ConfigError):
                self._leave_out(number)
            else:
                readable[number] = row
        tokens = self._tokens(list(readable.values()))
        for number, sequences in zip(readable, tokens, strict=True):
            if sequences is None:
                self._leave_out(number)
                continue
            is_too_long = sequences.exceed(self.rows.max_length)
            self.table.add(InspectedRow(number, hashes[number], is_too_long))
            if not is_too_long:
                self._ahead[number] = sequences

    def take(self, numbers: Sequence[int]) -> TokenSequences:
        """The sequences of these rows, in this order; of a pair two, the chosen one first. Ends the run if a row has
        changed since it was inspected."""
        found = {number: self._ahead.pop(number) for number in numbers if number in self._ahead}
        others = [number for number in numbers if number not in found]
        if others:
            rows = [self.rows.row(number, self.table.hash_of(number)) for number in others]
            found |= zip(others, self._split(rows), strict=True)
        return joined([found[number] for number in numbers])

    def digest(self, numbers: Sequence[int]) -> str:
        """Of these rows and their order."""
        facts = "".join(f"{number} {self.table.hash_of(number)} " for number in numbers)
        return xxhash.xxh3_64_hexdigest(facts.encode())

    def _tokens(self, rows: Sequence[Row]) -> Sequence[TokenSequences | None]:
        """None for a row that cannot be tokenized."""
        try:
            return self._split(rows)
        except ValueError:
            return [None] if len(rows) == 1 else [each for row in rows for each in self._tokens([row])]

    def _split(self, rows: Sequence[Row]) -> list[TokenSequences]:
        return self.rows.tokenizer.tokens(rows).split(self.rows.tokenizer.per_row)

    def _leave_out(self, number: int) -> None:
        self.table.add(InspectedRow(number, INVALID, is_too_long=True))
        self._num_invalid += 1
        if self._num_invalid > MAX_SHOWN:
            return
        try:
            self.rows.row(number, INVALID)
        except InvalidRow as fault:
            log.warning("%s; the row is left out", fault)
        if self._num_invalid == MAX_SHOWN:
            log.warning("%s: further invalid rows are left out without a line here", self.rows.section)
