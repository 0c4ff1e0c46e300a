"""Which held-out rows are also training rows: exactly, after normalization, or by the n-grams of their words.

Held-out rows are kept as hashes and training rows are read once, one after the other, so that memory does not grow
with them.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from areal_like.data.chat_template import SYSTEM, Message
from areal_like.data.tasks.base import Row

LEAST_SHARE = 0.5
"""Of the n-grams of a held-out row that are in training rows: from it on the row counts."""
TEMPLATE_SHARE, TEMPLATE_ROWS = 0.5, 10
"""An n-gram in more than this share of the held-out rows is of their template, where there are so many rows."""
ROWS_AT_ONCE = 512
NONE = np.iinfo(np.int64).max
"""Row of an n-gram that is in no training row."""
WORD = re.compile(r"\w+|[^\w\s]")
SENTENCE_MARKS = frozenset(".,;:!?'\"`")
COMPARED = {"rl": ("prompt",), "sft": ("prompt", "answer"), "rw": ("prompt", "chosen")}
"""Dataset type -> columns of which the first one with a text is compared."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Hashes = NDArray[np.uint64]


class Overlap(NamedTuple):
    """A held-out row, and the first training row that is equal, equal after normalization, or shares n-grams."""

    row: int
    exact: int | None
    normalized: int | None
    share: float
    """Of the row's n-grams."""
    shares_with: int | None
    """The training row that has most of them as the first one."""


def compared_text(row: Row, kind: str) -> str:
    """The prompt of a row of this dataset type. Pairs and answers to imitate may be whole texts or conversations
    without a prompt: then the chosen answer, or the answer."""
    texts = (_text(row[name]) for name in COMPARED[kind])
    return next((text for text in texts if text.strip()), "")


def _text(value: str | list[Message]) -> str:
    """Without system messages, which are the same in every row."""
    if isinstance(value, str):
        return value
    contents = [each.get("content") for each in value if each["role"] != SYSTEM]
    return "\n".join(each if isinstance(each, str) else str(each) for each in contents)


def words_of(text: str) -> list[str]:
    """In lower case, without the marks of sentences. Other signs are words: 3 - 2 is not 3 + 2."""
    words: list[str] = WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return [word for word in words if word not in SENTENCE_MARKS]


class HeldOutRows:
    """`texts` are those of the held-out rows. One without words overlaps with nothing."""

    def __init__(self, texts: Iterable[str], ngram: int) -> None:
        self.ngram = ngram
        self._hash_of_word: dict[str, int] = {}
        self._waiting: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
        """Hash of a text, and of a normalized one -> held-out rows that no training row had yet."""
        self._found: tuple[dict[int, int], dict[int, int]] = ({}, {})
        """Held-out row -> training row."""
        grams: list[Hashes] = []
        for number, text in enumerate(texts):
            words = words_of(text)
            for waiting, key in zip(self._waiting, _keys(text, words), strict=True) if words else ():
                waiting.setdefault(key, []).append(number)
            for word in words:
                self._hash_of_word.setdefault(word, _hash(word) or 1)
            grams.append(np.unique(self._ngrams([words])[0]))
        self.num_rows = len(grams)
        known, counts = np.unique(np.concatenate([*grams, np.empty(0, np.uint64)]), return_counts=True)
        if self.num_rows >= TEMPLATE_ROWS:
            known = known[counts <= TEMPLATE_SHARE * self.num_rows]
        self._grams = known
        self._first = np.full(len(known), NONE, np.int64)
        """The first training row of each n-gram."""
        self._grams_of_row = [np.flatnonzero(np.isin(known, each)) for each in grams]

    def add(self, first: int, texts: Sequence[str], words: Sequence[list[str]]) -> None:
        """Training rows from number `first` on."""
        for number, keys in enumerate(map(_keys, texts, words), first):
            for waiting, found, key in zip(self._waiting, self._found, keys, strict=True):
                found.update(dict.fromkeys(waiting.pop(key, ()), number))
        grams, rows = self._ngrams(words)
        places = np.searchsorted(self._grams, grams)
        places[places == len(self._grams)] = 0
        is_known = self._grams[places] == grams if len(self._grams) else np.zeros(len(grams), bool)
        np.minimum.at(self._first, places[is_known], first + rows[is_known])

    def _ngrams(self, words: Sequence[list[str]]) -> tuple[Hashes, NDArray[np.int64]]:
        """Hash and row of each n-gram whose words are all in held-out rows."""
        lookup, unknown = self._hash_of_word.get, 0
        hashes = np.array([each for row in words for each in (*(lookup(word, 0) for word in row), unknown)], np.uint64)
        rows = np.repeat(np.arange(len(words)), [len(row) + 1 for row in words])
        num_starts = max(0, len(hashes) - self.ngram + 1)
        grams, is_whole = np.zeros(num_starts, np.uint64), np.ones(num_starts, bool)
        for place in range(self.ngram):
            part = hashes[place : place + num_starts]
            grams = grams * MULTIPLIER + part
            is_whole &= part != unknown
        return grams[is_whole], rows[:num_starts][is_whole]

    def overlaps(self) -> Iterator[Overlap]:
        """Of the rows that have any."""
        exact, normalized = self._found
        for number, grams in enumerate(self._grams_of_row):
            first = self._first[grams]
            found = first[first != NONE]
            share = len(found) / max(1, len(grams))
            if number in normalized or share >= LEAST_SHARE:
                rows, counts = np.unique(found, return_counts=True)
                most = int(rows[counts.argmax()]) if len(rows) else None
                yield Overlap(number, exact.get(number), normalized.get(number), share, most)


def _keys(text: str, words: Sequence[str]) -> tuple[int, int]:
    return _hash(text), _hash(" ".join(words))


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def read_training_rows(texts: Iterable[str], held_out: Sequence[HeldOutRows]) -> Iterator[int]:
    """Compares all training rows; yields their number after each part."""
    remaining, number = iter(texts), 0
    while part := list(islice(remaining, ROWS_AT_ONCE)):
        words = [words_of(text) for text in part]
        for each in held_out:
            each.add(number, part, words)
        number += len(part)
        yield number


def count(overlaps: Sequence[Overlap]) -> dict[str, Any]:
    """Rows by kind of overlap."""
    return {
        "exact": sum(each.exact is not None for each in overlaps),
        "normalized": sum(each.normalized is not None for each in overlaps),
        "n-grams": sum(each.share >= LEAST_SHARE for each in overlaps),
    }
