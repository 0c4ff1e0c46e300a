"""Rows looked through once: each is what its type wants, is short enough, can be put into tokens, and has a hash."""

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
    """Some rows of a source (None: all), each made when it is asked for."""

    def __init__(self, rows: Sequence[Any], shape: RowFormat, numbers: NDArray[np.int64] | None = None) -> None:
        self._rows, self._shape, self._numbers = rows, shape, numbers

    def __len__(self) -> int:
        return len(self._rows) if self._numbers is None else len(self._numbers)

    def __iter__(self) -> Iterator[Row]:
        if self._numbers is not None:
            return (self[at] for at in range(len(self)))
        return (self._shape(row) for row in self._rows)

    def row(self, index: int) -> Row:
        return self._shape(self._rows[self.number(index)])

    def number(self, index: int) -> int:
        """Of a row, in its source."""
        return index if self._numbers is None else int(self._numbers[index])


@dataclass(frozen=True)
class CheckedRows:
    """Rows in a fixed order; whoever has the same digest has the same rows."""

    rows: Sequence[Row]
    hashes: NDArray[np.uint64]
    source: str
    """Where they come from, in words."""
    place: Callable[[int], str]
    """Where a row stands, for who has to mend it."""
    tokens: TokenSequences | None = None
    """Of all rows, where a trainer asked for them: a sequence of each, of a pair two."""
    has_messages: bool = False
    """Whether a chat template made text of some of them."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def row_hashes(self) -> list[str]:
        return [f"{each:016x}" for each in self.hashes.tolist()]

    @cached_property
    def digest(self) -> str:
        return xxhash.xxh3_64_hexdigest("".join(self.row_hashes).encode())


def check_rows(section: str, dataset: Any, found: RawRows, tokenizer: TextTokenizer, with_tokens: bool) -> CheckedRows:
    """The rows of one dataset of an experiment, which is at the key `section`."""
    return _RowCheck(section, dataset, found, tokenizer).rows(with_tokens)


class _RowCheck:
    def __init__(self, section: str, dataset: Any, found: RawRows, tokenizer: TextTokenizer) -> None:
        self._section, self._dataset, self._found = section, dataset, found
        self._examples = RowTokenizer(tokenizer, dataset.type, dataset.loss_on)
        self._shape = RowFormat(dataset.type, dataset.fields, dataset.as_chat, section)
        self._has_messages = False

    def rows(self, with_tokens: bool) -> CheckedRows:
        hashes = np.array(array("Q", self._hashes()), np.uint64)
        rows, source, most = self._found.rows, self._found.source, self._dataset.max_length
        if not len(hashes):
            raise config_error(f"{self._section}.path", empty_message(source))
        shaped, tokens = ConvertedRows(rows, self._shape), None
        if with_tokens:
            tokens = self._told(shaped, lambda: self._examples.tokens(shaped))
            self._tell_hidden(tokens)
        if most is not None:
            lengths_R = self._told(shaped, lambda: self._examples.longest(tokens or shaped))
            kept_R = np.flatnonzero(lengths_R <= most)
            if len(kept_R) < len(lengths_R):
                said = f"{len(lengths_R) - len(kept_R)} of {len(lengths_R)} rows of {source} are left out"
                log.info("%s: they have more than %d tokens (%s.max_length)", said, most, self._section)
                shaped, hashes = ConvertedRows(rows, self._shape, kept_R), hashes[kept_R]
                tokens = tokens and tokens.take(sequences_of(kept_R, self._examples.per_row))
        if not len(shaped):
            message = f"{source} has no rows of at most {most} tokens ({self._section}.max_length)"
            raise config_error(f"{self._section}.path", message)
        place = self._found.place
        return CheckedRows(shaped, hashes, source, lambda at: place(shaped.number(at)), tokens, self._has_messages)

    def _hashes(self) -> Iterator[int]:
        """Of the rows as JSON; a row that is not as it must be is an error."""
        key, place = f"{self._section}.path", self._found.place
        for number, given in enumerate(self._found.rows):
            try:
                row = self._shape(given)
            except ValueError as fault:
                is_row = isinstance(given, dict)
                raise config_error(key, f"{place(number)}{':' if is_row else ''} {fault}", fault) from fault
            if not self._has_messages and is_chat(row, self._dataset.type):
                self._has_messages = True
                self._tell(row, number)  # that there is a template, and that it fits
            try:
                text = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
            except TypeError as fault:
                raise config_error(key, f"{place(number)} holds what JSON cannot: {fault}", fault) from fault
            yield xxhash.xxh3_64_intdigest(text)

    def _told(self, rows: Sequence[Row], work: Callable[[], T]) -> T:
        """Of many rows at once; where it fails, one by one, which tells the row that is to blame."""
        try:
            return work()
        except ConfigError:
            raise
        except ValueError as fault:
            for number, row in enumerate(rows):
                self._tell(row, number)
            raise config_error(f"{self._section}.path", f"{self._found.source}: {fault}", fault) from fault

    def _tell(self, row: Row, number: int) -> None:
        """Whether this row, or the tokenizer, is to blame."""
        try:
            self._examples.tokens([row])
        except ValueError as fault:
            text = str(fault)
            if text.startswith(f"{KEY}: "):
                raise config_error(KEY, text.removeprefix(f"{KEY}: "), fault) from fault
            raise config_error(f"{self._section}.path", f"{self._found.place(number)}: {text}", fault) from fault

    def _tell_hidden(self, tokens: TokenSequences) -> None:
        if tokens.hidden:
            log.warning(
                "%s: the loss is not on %d answers of %s: the chat template gives all but the last of a conversation "
                "in another form than the model writes them in",
                *(self._section, tokens.hidden, self._found.source),
            )
