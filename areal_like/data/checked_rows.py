"""Checks all rows of a dataset once: format, length, tokenization; and hashes them."""

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from areal_like.config.problems import ConfigError
from areal_like.data.dataset_files import empty_message
from areal_like.data.dataset_source import RawRows
from areal_like.data.row_format import RowFormat, is_chat
from areal_like.data.row_tokenizer import RowTokenizer, TokenSequences, sequences_of
from areal_like.data.tasks.base import Row, RowSequence
from areal_like.data.tokenizer import KEY, TextTokenizer
from areal_like.data.user_code import config_error

T = TypeVar("T")

log = logging.getLogger(__name__)


class ConvertedRows(RowSequence):
    """Some rows of a source (None: all), converted on access."""

    def __init__(self, rows: Sequence[Any], row_format: RowFormat, numbers: NDArray[np.int64] | None = None) -> None:
        self._rows, self._format, self._numbers = rows, row_format, numbers

    def __len__(self) -> int:
        return len(self._rows) if self._numbers is None else len(self._numbers)

    def __iter__(self) -> Iterator[Row]:
        if self._numbers is not None:
            return (self[at] for at in range(len(self)))
        return (self._format(row) for row in self._rows)

    def row(self, index: int) -> Row:
        return self._format(self._rows[self.source_index(index)])

    def source_index(self, index: int) -> int:
        """The row's index in its source."""
        return index if self._numbers is None else int(self._numbers[index])


@dataclass(frozen=True)
class CheckedRows:
    """Rows in a fixed order; equal digests mean equal rows."""

    rows: Sequence[Row]
    hashes: NDArray[np.uint64]
    source: str
    """A description of their origin, for messages."""
    place: Callable[[int], str]
    """Index -> file and line of a row, for messages."""
    tokens: TokenSequences | None = None
    """Of all rows, if requested: one sequence per row, of a pair two."""
    has_messages: bool = False
    """Whether some rows need the chat template."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def row_hashes(self) -> list[str]:
        return [f"{each:016x}" for each in self.hashes.tolist()]

    @cached_property
    def digest(self) -> str:
        return xxhash.xxh3_64_hexdigest("".join(self.row_hashes).encode())


def check_rows(section: str, dataset: Any, raw: RawRows, tokenizer: TextTokenizer, with_tokens: bool) -> CheckedRows:
    """The rows of a dataset, whose section is `section`."""
    return _RowCheck(section, dataset, raw, tokenizer).rows(with_tokens)


class _RowCheck:
    def __init__(self, section: str, dataset: Any, raw: RawRows, tokenizer: TextTokenizer) -> None:
        self._section, self._dataset, self._raw = section, dataset, raw
        self._examples = RowTokenizer(tokenizer, dataset.type, dataset.loss_on)
        self._format = RowFormat(dataset, section)
        self._has_messages = False

    def rows(self, with_tokens: bool) -> CheckedRows:
        hashes = np.array(array("Q", self._hashes()), np.uint64)
        rows, source, most = self._raw.rows, self._raw.source, self._dataset.max_length
        if not len(hashes):
            raise config_error(f"{self._section}.path", empty_message(source))
        converted, tokens = ConvertedRows(rows, self._format), None
        if with_tokens:
            tokens = self._with_row_error(converted, lambda: self._examples.tokens(converted))
            self._warn_unlocated(tokens)
        if most is not None:
            lengths_R = self._with_row_error(converted, lambda: self._examples.longest(tokens or converted))
            short_R = np.flatnonzero(lengths_R <= most)
            if len(short_R) < len(lengths_R):
                dropped = f"{len(lengths_R) - len(short_R)} of {len(lengths_R)} rows of {source}"
                log.info("dropped %s with more than %d tokens (%s.max_length)", dropped, most, self._section)
                converted, hashes = ConvertedRows(rows, self._format, short_R), hashes[short_R]
                tokens = tokens and tokens.take(sequences_of(short_R, self._examples.per_row))
        if not len(converted):
            message = f"{source} has no rows of at most {most} tokens ({self._section}.max_length)"
            raise config_error(f"{self._section}.path", message)
        place = self._raw.place
        return CheckedRows(
            converted, hashes, source, lambda at: place(converted.source_index(at)), tokens, self._has_messages
        )

    def _hashes(self) -> Iterator[int]:
        """Of the rows as JSON; an invalid row is an error."""
        key, place = f"{self._section}.path", self._raw.place
        for number, raw in enumerate(self._raw.rows):
            try:
                row = self._format(raw)
            except ValueError as fault:
                is_row = isinstance(raw, dict)
                raise config_error(key, f"{place(number)}{':' if is_row else ''} {fault}", fault) from fault
            if not self._has_messages and is_chat(row, self._dataset.type):
                self._has_messages = True
                self._check_tokenizes(row, number)  # raises where there is no template, or it does not fit
            try:
                text = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
            except TypeError as fault:
                raise config_error(key, f"{place(number)} cannot be stored as JSON: {fault}", fault) from fault
            yield xxhash.xxh3_64_intdigest(text)

    def _with_row_error(self, rows: Sequence[Row], work: Callable[[], T]) -> T:
        """Processes many rows at once; on failure one by one, to find the row that causes it."""
        try:
            return work()
        except ConfigError:
            raise
        except ValueError as fault:
            for number, row in enumerate(rows):
                self._check_tokenizes(row, number)
            raise config_error(f"{self._section}.path", f"{self._raw.source}: {fault}", fault) from fault

    def _check_tokenizes(self, row: Row, number: int) -> None:
        """Raises with the key of the tokenizer or with the place of the row, by the cause."""
        try:
            self._examples.tokens([row])
        except ValueError as fault:
            text = str(fault)
            if text.startswith(f"{KEY}: "):
                raise config_error(KEY, text.removeprefix(f"{KEY}: "), fault) from fault
            raise config_error(f"{self._section}.path", f"{self._raw.place(number)}: {text}", fault) from fault

    def _warn_unlocated(self, tokens: TokenSequences) -> None:
        if tokens.num_unlocated:
            log.warning(
                "%s: %d answers of %s are not in the loss: the chat template changes all answers of a conversation but "
                "the last",
                *(self._section, tokens.num_unlocated, self._raw.source),
            )
