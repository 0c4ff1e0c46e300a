"""All rows of a dataset as tokens, for supervised training: checked, hashed and measured before the first step."""

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import xxhash

from areal_like.config.problems import ConfigError
from areal_like.data.checked_rows import CheckedRows, ConvertedRows, RowCheck
from areal_like.data.dataset_source import RawRows
from areal_like.data.row_table import hash_text
from areal_like.data.row_tokenizer import sequences_of
from areal_like.data.tasks.base import Row
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import config_error

T = TypeVar("T")

log = logging.getLogger(__name__)


def tokenize_rows(section: str, dataset: Any, raw: RawRows, tokenizer: TextTokenizer) -> CheckedRows:
    """The rows of a dataset, whose section is `section`, without those that are too long."""
    check = RowCheck(section, dataset, raw, tokenizer)
    hashes = np.array(array("Q", _hashes(check)), np.uint64)
    converted = ConvertedRows(raw.rows, check.format)
    tokens = _with_row_error(check, converted, lambda: check.tokenizer.tokens(converted))
    if tokens.num_unlocated:
        log.warning(
            "%s: %d answers of %s are not in the loss: the chat template changes all answers of a conversation but "
            "the last",
            *(section, tokens.num_unlocated, raw.source),
        )
    if dataset.max_length is not None:
        lengths_R = check.tokenizer.longest(tokens)
        numbers = np.flatnonzero(lengths_R <= dataset.max_length)
        if len(numbers) < len(lengths_R):
            dropped = f"{len(lengths_R) - len(numbers)} of {len(lengths_R)} rows of {raw.source}"
            log.info("dropped %s with more than %d tokens (%s.max_length)", dropped, dataset.max_length, section)
            converted, hashes = ConvertedRows(raw.rows, check.format, numbers), hashes[numbers]
            tokens = tokens.take(sequences_of(numbers, check.tokenizer.per_row))
        if not len(converted):
            raise config_error(f"{section}.path", check.no_short_rows_message)
    return CheckedRows(
        rows=converted,
        section=section,
        source=raw.source,
        place=lambda at: raw.place(converted.source_index(at)),
        digest=xxhash.xxh3_64_hexdigest("".join(map(hash_text, hashes.tolist())).encode()),
        has_messages=check.has_messages,
        is_too_long=lambda row: False,
        tokens=tokens,
    )


def _hashes(check: RowCheck) -> Iterator[int]:
    return (check.checked(number, raw)[1] for number, raw in enumerate(check.raw.rows))


def _with_row_error(check: RowCheck, rows: Sequence[Row], work: Callable[[], T]) -> T:
    """Processes many rows at once; on failure one by one, to find the row that causes it."""
    try:
        return work()
    except ConfigError:
        raise
    except ValueError as fault:
        for number, row in enumerate(rows):
            check.check_tokenizes(row, number)
        raise config_error(f"{check.section}.path", f"{check.raw.source}: {fault}", fault) from fault
