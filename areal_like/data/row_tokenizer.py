"""Tokenizes rows into flat arrays of token ids and loss masks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from areal_like.data.chat_template import Message
from areal_like.data.row_format import conversation
from areal_like.data.tasks import Row
from areal_like.data.tokenizer import TextTokenizer

ALL = "all"


class TextSegment(NamedTuple):
    """A text that is tokenized by itself, such as a prompt. `special` adds the model's special tokens around it;
    `counts` puts its tokens in the loss."""

    text: str
    special: bool = False
    counts: bool = False


class TokenizerInput(NamedTuple):
    """One sequence. `ends` appends the eos token."""

    segments: tuple[TextSegment, ...]
    ends: bool = False
    num_unlocated: int = 0
    """Answers that the chat template changes and that cannot be located: not in the loss."""


@dataclass(frozen=True)
class TokenSequences:
    """Concatenated sequences and their lengths."""

    token_ids: NDArray[np.int32]
    counts: NDArray[np.bool_]
    lengths_N: NDArray[np.int64]
    num_unlocated: int = 0

    def __len__(self) -> int:
        return len(self.lengths_N)

    def exceed(self, most: int | None) -> bool:
        """Whether any is longer; None: no limit."""
        return most is not None and int(self.lengths_N.max(initial=0)) > most

    def split(self, per_row: int) -> "list[TokenSequences]":
        """Those of each row."""
        lengths_R = self.lengths_N.reshape(-1, per_row)
        ends_R = np.cumsum(lengths_R.sum(axis=1)).tolist()
        return [
            TokenSequences(self.token_ids[start:end], self.counts[start:end], lengths_n)
            for start, end, lengths_n in zip([0, *ends_R], ends_R, lengths_R, strict=False)
        ]


def joined(parts: "Sequence[TokenSequences]") -> TokenSequences:
    """At least one, in this order."""
    return TokenSequences(
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.lengths_N for part in parts]),
        sum(part.num_unlocated for part in parts),
    )


class RowTokenizer:
    """Converts rows of one type to sequences: one per row, of a pair two. `loss_on` is `answers` or `all`."""

    def __init__(self, tokenizer: TextTokenizer, kind: str, loss_on: str = "answers") -> None:
        self._tokenizer, self._kind, self._all = tokenizer, kind, loss_on == ALL

    @property
    def per_row(self) -> int:
        return 2 if self._kind == "rw" else 1

    def of(self, row: Row) -> list[TokenizerInput]:
        if self._kind == "rl":
            return [self._prompt(row["prompt"], row.get("tools"))]
        answers = ("chosen", "rejected") if self._kind == "rw" else ("answer",)
        return [self.with_answer(row["prompt"], row[name], row.get("tools")) for name in answers]

    def with_answer(
        self, prompt: str | list[Message], answer: str | list[Message], tools: Any = None
    ) -> TokenizerInput:
        """A sequence for supervised training, or for a reward model."""
        if isinstance(prompt, str) and isinstance(answer, str):
            segments = (TextSegment(prompt, special=True, counts=self._all), TextSegment(answer, counts=True))
            return TokenizerInput(segments, ends=not self._is_ended(answer))
        return self._conversation(conversation(prompt, answer), tools)

    def tokens(self, rows: Iterable[Row]) -> TokenSequences:
        """All texts of a kind are tokenized in one call, which uses several threads."""
        tokens = self._tokenize([example for row in rows for example in self.of(row)])
        if self._kind == "rw" and not tokens.lengths_N.all():
            raise ValueError("a text has no tokens, so that it cannot be scored; remove the row")
        return tokens

    def _prompt(self, prompt: str | list[Message], tools: Any) -> TokenizerInput:
        if isinstance(prompt, str):
            return TokenizerInput((TextSegment(prompt, special=True),))
        return TokenizerInput(
            (TextSegment(self._tokenizer.chat.render(prompt, add_generation_prompt=True, tools=tools)),)
        )

    def _conversation(self, messages: list[Message], tools: Any) -> TokenizerInput:
        """What follows an answer's end-of-turn token is not in the loss: the model stops there."""
        spans, num_unlocated = self._tokenizer.chat.spans(messages, tools)
        merged: list[list[Any]] = []
        for text, is_answer in spans:
            end = len(text.rstrip()) if is_answer and self._is_ended(text) else len(text)
            for piece, counts in ((text[:end], is_answer), (text[end:], False)):
                if merged and merged[-1][1] == counts:
                    merged[-1][0] += piece
                elif piece:
                    merged.append([piece, counts])
        if merged and not merged[-1][0].strip():
            merged.pop()
        if merged:
            merged[-1][0] = merged[-1][0].rstrip()
        segments = tuple(TextSegment(text, counts=self._all or counts) for text, counts in merged)
        return TokenizerInput(segments, not (merged and self._is_ended(merged[-1][0])), num_unlocated)

    def _is_ended(self, answer: str) -> bool:
        """Whether it ends with a special token, of the template or of the text."""
        return answer.rstrip().endswith(self._tokenizer.special_tokens)

    def _tokenize(self, examples: Sequence[TokenizerInput]) -> TokenSequences:
        segments = [segment for example in examples for segment in example.segments]
        ids: dict[bool, Iterator[list[int]]] = {}
        for special in (False, True):
            texts = [segment.text for segment in segments if segment.special == special]
            ids[special] = iter(self._tokenizer.encode_all(texts, special) if texts else ())
        eos = [] if self._tokenizer.eos_id is None else [self._tokenizer.eos_id]
        pieces: list[list[int]] = []
        counts: list[bool] = []
        lengths = []
        for example in examples:
            mine = [next(ids[segment.special]) for segment in example.segments]
            flags = [segment.counts for segment in example.segments]
            if example.ends:
                mine, flags = [*mine, eos], [*flags, True]
            pieces += mine
            counts += flags
            lengths.append(sum(map(len, mine)))
        sizes = [len(piece) for piece in pieces]
        return TokenSequences(
            token_ids=np.fromiter(chain.from_iterable(pieces), np.int32, sum(sizes)),
            counts=np.repeat(np.array(counts, np.bool_), sizes),
            lengths_N=np.array(lengths, np.int64),
            num_unlocated=sum(example.num_unlocated for example in examples),
        )
