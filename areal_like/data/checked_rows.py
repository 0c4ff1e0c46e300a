"""Rows of a dataset, read and checked on access: some of them at the start, the others shortly before their use."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import xxhash

from areal_like.config.problems import ConfigError
from areal_like.data.exact_json import dump_json
from areal_like.data.readers.dataset_files import empty_message
from areal_like.data.readers.dataset_source import RawRows
from areal_like.data.row_format import RowFormat, is_chat
from areal_like.data.row_table import InspectedRow
from areal_like.data.row_tokenizer import RowTokenizer, TokenSequences
from areal_like.data.tasks.base import Row, RowSequence
from areal_like.data.tokenizer import KEY, TextTokenizer
from areal_like.data.user_code import config_error, describe_error
from areal_like.process.errors import FinalFailure, InfrastructureError

CHECKED_AT_START = 256
"""Rows, evenly spread over the dataset."""
UNLOCATED = (
    "%s: %d answers in the %d checked rows of %s are not in the loss: the chat template changes all answers of a "
    "conversation but the last"
)
INVALID = 0
"""The hash of an invalid row: whoever uses the row gets the error."""


log = logging.getLogger(__name__)


class InvalidRow(ValueError):
    """The message names the row's place."""


class ConvertedRows(RowSequence):
    """The rows of a source, converted on access."""

    def __init__(self, rows: Sequence[Any], row_format: RowFormat) -> None:
        self._rows, self._format = rows, row_format

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return (self._format(row) for row in self._rows)

    def row(self, index: int) -> Row:
        return self._format(self._rows[index])


@dataclass(frozen=True)
class CheckedRows:
    """Rows in a fixed order; equal digests mean equal rows, as far as they can be compared without reading all."""

    rows: Sequence[Row]
    section: str
    source: str
    """A description of their origin, for messages."""
    place: Callable[[int], str]
    """Index -> file and line of a row, for messages."""
    digest: str
    has_messages: bool
    """Whether some rows need the chat template."""
    tokenizer: RowTokenizer
    max_length: int | None
    """Tokens of a row."""
    is_measured: bool
    """Whether a row that cannot be tokenized is invalid."""
    name: str = ""
    """That of their environment."""
    parts: Sequence["CheckedRows"] = ()
    """Of several environments: the rows of each, in the order of the configuration."""

    def environment(self, number: int) -> str:
        """The environment of a row; empty where there are none."""
        return self.name

    def __len__(self) -> int:
        return len(self.rows)

    def is_too_long(self, row: Row) -> bool:
        """Raises ValueError for a row that cannot be tokenized."""
        return self.is_measured and self.tokenizer.tokens([row]).exceed(self.max_length)

    def inspect(self, numbers: Sequence[int]) -> list[InspectedRow]:
        """An invalid row counts as one that is short enough, with the hash `INVALID`: the group that uses it fails."""
        return [self._inspect(number) for number in numbers]

    def _inspect(self, number: int) -> InspectedRow:
        try:
            row = self.rows[number]
            return InspectedRow(number, row_hash(row), self.is_too_long(row))
        except FinalFailure:
            raise
        except Exception:
            return InspectedRow(number, INVALID, False)

    def row(self, number: int, expected: int) -> Row:
        """The row with this hash. Raises InvalidRow if it is or was invalid, and ends the run if it is another row."""
        try:
            row = self.rows[number]
            actual = row_hash(row)
            if expected == INVALID:
                self.is_too_long(row)
        except (FinalFailure, InfrastructureError):
            raise
        except ConfigError as fault:
            raise InvalidRow(str(fault)) from fault
        except Exception as fault:
            text = str(fault) if isinstance(fault, ValueError | TypeError) else describe_error(fault)
            where = "" if text.startswith(f"{KEY}: ") else f"{self.section}.path: {self.place(number)}: "
            raise InvalidRow(f"{where}{text}") from fault
        if expected == INVALID:
            raise InvalidRow(f"{self.section}.path: {self.place(number)}: could not be read before, and can be now")
        if actual != expected:
            raise FinalFailure(
                f"{self.section}: {self.place(number)} has changed since it was read first; a run needs the same rows "
                "in all its processes and whenever it is resumed"
            )
        return row


def row_hash(row: Row) -> int:
    """Of the row as JSON."""
    return xxhash.xxh3_64_intdigest(dump_json(row, sort_keys=True))


def digest_of(section: str, dataset: Any, raw: RawRows) -> str:
    """That of `CheckedRows`, without their other checks. Raises ValueError or TypeError for an invalid row."""
    row_format, num_rows = RowFormat(dataset, section), len(raw.rows)
    hashes = [row_hash(row_format(raw.rows[number])) for number in _checked_numbers(num_rows)]
    return _digest(num_rows, dataset.max_length, raw.content, hashes)


def _checked_numbers(num_rows: int) -> list[int]:
    numbers: list[int] = np.unique(np.linspace(0, num_rows - 1, CHECKED_AT_START).astype(np.int64)).tolist()
    return numbers


def _digest(num_rows: int, most: int | None, content: str, hashes: list[int]) -> str:
    """`content` tells of the rows whose hashes are not given."""
    facts = [num_rows, most, "" if len(hashes) == num_rows else content, hashes]
    return xxhash.xxh3_64_hexdigest(orjson.dumps(facts))


def check_rows(section: str, dataset: Any, raw: RawRows, tokenizer: TextTokenizer) -> CheckedRows:
    """The rows of a dataset, whose section is `section`."""
    return RowCheck(section, dataset, raw, tokenizer).rows()


class RowCheck:
    """Errors are those of the dataset's key, with the row's place."""

    def __init__(self, section: str, dataset: Any, raw: RawRows, tokenizer: TextTokenizer) -> None:
        self.section, self.dataset, self.raw = section, dataset, raw
        self.tokenizer = RowTokenizer(tokenizer, dataset.type, dataset.loss_on)
        self.format = RowFormat(dataset, section)
        self.has_messages = False
        if not len(raw.rows):
            raise config_error(f"{section}.path", empty_message(raw.source))

    def rows(self) -> CheckedRows:
        """Checks a part of them."""
        raw, num_rows = self.raw, len(self.raw.rows)
        sample = _checked_numbers(num_rows)
        hashes, short, unlocated, most = [], 0, 0, self.dataset.max_length
        is_measured = most is not None or self.dataset.type != "rl"
        for number in sample:
            row, digest = self.checked(number, raw.rows[number])
            hashes.append(digest)
            if is_measured:
                tokens = self.check_tokenizes(row, number)
                short += not tokens.exceed(most)
                unlocated += tokens.num_unlocated
        if unlocated:
            log.warning(UNLOCATED, self.section, unlocated, len(sample), raw.source)
        is_whole = len(sample) == num_rows
        if is_whole and is_measured and not short:
            message = f"{raw.source} has no rows of at most {most} tokens ({self.section}.max_length)"
            raise config_error(f"{self.section}.path", message)
        return CheckedRows(
            rows=ConvertedRows(raw.rows, self.format),
            section=self.section,
            source=raw.source,
            place=raw.place,
            digest=_digest(num_rows, most, raw.content, hashes),
            has_messages=self.has_messages,
            tokenizer=self.tokenizer,
            max_length=most,
            is_measured=is_measured,
        )

    def checked(self, number: int, raw: Any) -> tuple[Row, int]:
        """The row and its hash; an invalid row is an error."""
        key, place = f"{self.section}.path", self.raw.place
        try:
            row = self.format(raw)
        except ValueError as fault:
            raise config_error(key, f"{place(number)}{':' if isinstance(raw, dict) else ''} {fault}", fault) from fault
        if not self.has_messages and is_chat(row, self.dataset.type):
            self.has_messages = True
            self.check_tokenizes(row, number)  # raises where there is no template, or it does not fit
        try:
            return row, row_hash(row)
        except TypeError as fault:
            raise config_error(key, f"{place(number)} cannot be stored as JSON: {fault}", fault) from fault

    def check_tokenizes(self, row: Row, number: int) -> TokenSequences:
        """Raises with the key of the tokenizer or with the place of the row, by the cause."""
        try:
            return self.tokenizer.tokens([row])
        except ValueError as fault:
            text = str(fault)
            if text.startswith(f"{KEY}: "):
                raise config_error(KEY, text.removeprefix(f"{KEY}: "), fault) from fault
            raise config_error(f"{self.section}.path", f"{self.raw.place(number)}: {text}", fault) from fault
