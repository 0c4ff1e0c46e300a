"""Finds stop texts in answers while their tokens arrive.

A stop text may straddle tokens, and a token may contain part of a character: only complete characters are searched, at
the end of the answer. Special tokens count as their text.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""An incomplete character is decoded to this."""


class DecodeBatch(Protocol):
    """Decodes several token sequences to texts."""

    def __call__(self, sequences: Sequence[Sequence[int]]) -> list[str]: ...


def batch_decoder(tokenizer: "Tokenizer", skip_special: bool = False) -> DecodeBatch:
    def decode(sequences: Sequence[Sequence[int]]) -> list[str]:
        texts: list[str] = tokenizer.decode_batch(sequences, skip_special_tokens=skip_special)
        return texts

    return decode


class StopScanner:
    """The end of one answer's text.

    `_tokens` are the last tokens that completed characters, and those after them; the first `_num_decoded` of them gave
    `_known`. They are decoded together, since the text of a token depends on the tokens before it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._tail_length = max(map(len, self._stops)) - 1
        self._tail = ""
        self._tokens: list[int] = []
        self._num_decoded, self._known = 0, ""
        self._searched = 0
        """Characters after `_tail` that were searched and may still change."""

    def _search(self, text: str, may_end: bool) -> bool:
        """Whether `text`, of all of `_tokens`, completes a stop text."""
        new = text[len(self._known) :]
        complete = new.rstrip(INCOMPLETE)
        searched, start = self._tail + complete, len(self._tail) + self._searched
        is_stopped = may_end and any(searched.find(stop, max(0, start - len(stop) + 1)) >= 0 for stop in self._stops)
        self._searched = len(complete)
        return is_stopped

    def _is_complete(self, text: str) -> bool:
        return len(text) > len(self._known) and not text.endswith(INCOMPLETE)

    def _advance(self, text: str) -> list[int]:
        """Drops the tokens whose text is final; the last ones remain, before the next tokens."""
        new = text[len(self._known) :]
        self._tail = (self._tail + new)[-self._tail_length :] if self._tail_length else ""
        self._searched = 0
        self._tokens = self._tokens[self._num_decoded :]
        self._num_decoded = len(self._tokens)
        return self._tokens


def scan_tokens(
    decode: DecodeBatch, scanners: Sequence[StopScanner], tokens: Sequence[int], may_end: Sequence[bool] | None = None
) -> list[bool]:
    """Whether the next token of each answer completes one of its stop texts. Answers that may not end yet skip it."""
    for scanner, token in zip(scanners, tokens, strict=True):
        scanner._tokens.append(token)
    texts = decode([scanner._tokens for scanner in scanners])
    allowed = may_end if may_end is not None else [True] * len(scanners)
    stopped = [scanner._search(text, may) for scanner, text, may in zip(scanners, texts, allowed, strict=True)]
    complete = [(scanner, text) for scanner, text in zip(scanners, texts, strict=True) if scanner._is_complete(text)]
    if complete:
        remaining = decode([scanner._advance(text) for scanner, text in complete])
        for (scanner, _), known in zip(complete, remaining, strict=True):
            scanner._known = known
    return stopped


class FinishedText(NamedTuple):
    """`text` is without the stop text or token that ended the answer; `stop` is the stop text, or None."""

    text: str
    stop: str | None


def finished_texts(
    decode: DecodeBatch, answers: Sequence[tuple[Sequence[int], str]], stops: Sequence[str]
) -> list[FinishedText]:
    """Texts of answers, given as token ids and finish. With the finish `stop` the last token completes a stop text, or
    is a stop token."""
    texts = decode([token_ids for token_ids, _ in answers])
    stopped = [place for place, (_, finish) in enumerate(answers) if finish == "stop"]
    befores = dict(zip(stopped, decode([answers[place][0][:-1] for place in stopped]), strict=True))
    return [
        _without_stop(text, befores[place], stops) if place in befores else FinishedText(text, None)
        for place, text in enumerate(texts)
    ]


def _without_stop(text: str, before: str, stops: Sequence[str]) -> FinishedText:
    """`before` is the text without the last token."""
    searched = len(before.rstrip(INCOMPLETE))
    matches = [(text.find(stop, max(0, searched - len(stop) + 1)), stop) for stop in stops]
    place, stop = min((match for match in matches if match[0] >= 0), default=(-1, ""))
    return FinishedText(text[:place], stop) if stop else FinishedText(before, None)
