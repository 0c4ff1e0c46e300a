"""Texts that end an answer, found while its tokens come one by one.

A text may straddle tokens, and a token may hold a part of a character: an answer's text is read as far as it is whole,
and what is looked through is its end alone. Special tokens count with the text that stands for them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What the beginning of a character is read as while its other bytes are missing."""


class DecodeBatch(Protocol):
    """Tokens to text, many at once."""

    def __call__(self, sequences: Sequence[Sequence[int]]) -> list[str]: ...


def batch_decoder(tokenizer: "Tokenizer", skip_special: bool = False) -> DecodeBatch:
    def read(sequences: Sequence[Sequence[int]]) -> list[str]:
        texts: list[str] = tokenizer.decode_batch(sequences, skip_special_tokens=skip_special)
        return texts

    return read


class StopScanner:
    """The text of one answer as it grows.

    `_tokens` are the last ones that made text, and behind them those that did not make any yet; the first of these
    `_num_read` made `_known`. They are read together, since what a token reads as depends on what it follows.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._kept = max(map(len, self._stops)) - 1
        self._tail = ""
        self._tokens: list[int] = []
        self._num_read, self._known = 0, ""
        self._looked = 0
        """Characters behind `_tail` that were looked through and are not certain yet."""

    def _take(self, text: str, may_end: bool) -> bool:
        """`text` is that of all tokens of the window. Whether it completes one of the texts."""
        new = text[len(self._known) :]
        certain = new.rstrip(INCOMPLETE)
        seen, fresh = self._tail + certain, len(self._tail) + self._looked
        found = may_end and any(seen.find(stop, max(0, fresh - len(stop) + 1)) >= 0 for stop in self._stops)
        self._looked = len(certain)
        return found

    def _is_whole(self, text: str) -> bool:
        return len(text) > len(self._known) and not text.endswith(INCOMPLETE)

    def _settle(self, text: str) -> list[int]:
        """All of the window's text is certain: the tokens that made it become those that the next ones follow."""
        new = text[len(self._known) :]
        self._tail = (self._tail + new)[-self._kept :] if self._kept else ""
        self._looked = 0
        self._tokens = self._tokens[self._num_read :]
        self._num_read = len(self._tokens)
        return self._tokens


def scan_tokens(
    read: DecodeBatch, readings: Sequence[StopScanner], tokens: Sequence[int], may_end: Sequence[bool] | None = None
) -> list[bool]:
    """One token more for each answer: whether it completes one of its texts. Where it may not end, a text that is
    completed is passed over."""
    for reading, token in zip(readings, tokens, strict=True):
        reading._tokens.append(token)
    texts = read([reading._tokens for reading in readings])
    allowed = may_end if may_end is not None else [True] * len(readings)
    found = [reading._take(text, may) for reading, text, may in zip(readings, texts, allowed, strict=True)]
    whole = [(reading, text) for reading, text in zip(readings, texts, strict=True) if reading._is_whole(text)]
    if whole:
        for (reading, _), known in zip(whole, read([one._settle(text) for one, text in whole]), strict=True):
            reading._known = known
    return found


class FinishedText(NamedTuple):
    """`text` is without what ended the answer; `stop` is the text that did, or None."""

    text: str
    stop: str | None


def finished_texts(
    read: DecodeBatch, answers: Sequence[tuple[Sequence[int], str]], stops: Sequence[str]
) -> list[FinishedText]:
    """Of answers as token ids, each with how it ended: `stop` is by a text that its last token completes, or else by
    that token itself."""
    wholes = read([token_ids for token_ids, _ in answers])
    stopped = [place for place, (_, finish) in enumerate(answers) if finish == "stop"]
    befores = dict(zip(stopped, read([answers[place][0][:-1] for place in stopped]), strict=True))
    return [
        _ending(whole, befores[place], stops) if place in befores else FinishedText(whole, None)
        for place, whole in enumerate(wholes)
    ]


def _ending(whole: str, before: str, stops: Sequence[str]) -> FinishedText:
    told = len(before.rstrip(INCOMPLETE))
    places = [(whole.find(stop, max(0, told - len(stop) + 1)), stop) for stop in stops]
    place, found = min((found for found in places if found[0] >= 0), default=(-1, ""))
    return FinishedText(whole[:place], found) if found else FinishedText(before, None)
