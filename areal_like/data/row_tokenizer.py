"""Rows as token ids in flat arrays: which tokens they are, and which of them are to be learnt."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from areal_like.data.chat_template import Message
from areal_like.data.row_format import conversation
from areal_like.data.tasks import Row
from areal_like.data.tokenizer import TextTokenizer

ROWS_AT_ONCE = 2048
ALL = "all"


class TextSegment(NamedTuple):
    """A text that is made into tokens by itself, as the prompt of an answer is. `special` adds what the model wants
    around a text; `counts` says that its tokens are to be learnt."""

    text: str
    special: bool = False
    counts: bool = False


class TokenizerInput(NamedTuple):
    """One sequence. `ends` adds the token that ends an answer."""

    segments: tuple[TextSegment, ...]
    ends: bool = False
    hidden: int = 0
    """Answers in it that its chat template gives in another form than they were written in: not to be learnt."""


@dataclass(frozen=True)
class TokenSequences:
    """Sequences one after the other, and how long each is."""

    token_ids: NDArray[np.int32]
    counts: NDArray[np.bool_]
    lengths_N: NDArray[np.int64]
    hidden: int = 0

    def __len__(self) -> int:
        return len(self.lengths_N)

    @cached_property
    def starts_N(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths_N) - self.lengths_N

    def take(self, numbers: NDArray[np.int64]) -> "TokenSequences":
        """Of these sequences, in this order."""
        lengths_N = self.lengths_N[numbers]
        starts_T = np.repeat(self.starts_N[numbers] - (np.cumsum(lengths_N) - lengths_N), lengths_N)
        places_T = starts_T + np.arange(int(lengths_N.sum()))
        return TokenSequences(self.token_ids[places_T], self.counts[places_T], lengths_N)


def sequences_of(rows_R: NDArray[np.int64], per_row: int) -> NDArray[np.int64]:
    """The numbers of the sequences of these rows, those of a row one after the other."""
    return (rows_R[:, None] * per_row + np.arange(per_row)).ravel()


class RowTokenizer:
    """How rows of one type become sequences: one of each, of a pair two. `loss_on` is `answers` or `all`."""

    def __init__(self, tokenizer: TextTokenizer, kind: str, loss_on: str = "answers") -> None:
        self._tokenizer, self._kind, self._all = tokenizer, kind, loss_on == ALL

    @property
    def per_row(self) -> int:
        return 2 if self._kind == "rw" else 1

    def of(self, row: Row) -> list[TokenizerInput]:
        if self._kind == "rl":
            return [self._asked(row["prompt"], row.get("tools"))]
        answers = ("chosen", "rejected") if self._kind == "rw" else ("answer",)
        return [self.answered(row["prompt"], row[name], row.get("tools")) for name in answers]

    def answered(self, prompt: str | list[Message], answer: str | list[Message], tools: Any = None) -> TokenizerInput:
        """What is learnt by, and what a reward model scores."""
        if isinstance(prompt, str) and isinstance(answer, str):
            segments = (TextSegment(prompt, special=True, counts=self._all), TextSegment(answer, counts=True))
            return TokenizerInput(segments, ends=not self._is_ended(answer))
        return self._conversation(conversation(prompt, answer), tools)

    def tokens(self, rows: Iterable[Row]) -> TokenSequences:
        """Some rows at a time: as Python lists the tokens of a large dataset would not fit into memory."""
        ids, counts, lengths, hidden = bytearray(), bytearray(), bytearray(), 0
        for piece in self._pieces(rows):
            ids += piece.token_ids.tobytes()
            counts += piece.counts.tobytes()
            lengths += piece.lengths_N.tobytes()
            hidden += piece.hidden
        return TokenSequences(
            np.frombuffer(ids, np.int32), np.frombuffer(counts, np.bool_), np.frombuffer(lengths, np.int64), hidden
        )

    def longest(self, rows: "Iterable[Row] | TokenSequences") -> NDArray[np.int64]:
        """The tokens of each row, of a pair those of its longer sequence. Where they are not known, none is kept."""
        pieces = (rows,) if isinstance(rows, TokenSequences) else self._pieces(rows)
        found = [np.empty(0, np.int64), *(each.lengths_N for each in pieces)]
        longest_R: NDArray[np.int64] = np.concatenate(found).reshape(-1, self.per_row).max(axis=1)
        return longest_R

    def _asked(self, prompt: str | list[Message], tools: Any) -> TokenizerInput:
        if isinstance(prompt, str):
            return TokenizerInput((TextSegment(prompt, special=True),))
        return TokenizerInput((TextSegment(self._tokenizer.chat.render(prompt, True, tools)),))

    def _conversation(self, messages: list[Message], tools: Any) -> TokenizerInput:
        """What stands between the end of an answer and the next turn is no part of the answer: no model writes on
        after it has ended its turn."""
        parts, hidden = self._tokenizer.chat.parts(messages, tools)
        cut: list[list[Any]] = []
        for text, is_answer in parts:
            end = len(text.rstrip()) if is_answer and self._is_ended(text) else len(text)
            for piece, counts in ((text[:end], is_answer), (text[end:], False)):
                if cut and cut[-1][1] == counts:
                    cut[-1][0] += piece
                elif piece:
                    cut.append([piece, counts])
        if cut and not cut[-1][0].strip():
            cut.pop()
        if cut:
            cut[-1][0] = cut[-1][0].rstrip()
        segments = tuple(TextSegment(text, counts=self._all or counts) for text, counts in cut)
        return TokenizerInput(segments, not (cut and self._is_ended(cut[-1][0])), hidden)

    def _is_ended(self, answer: str) -> bool:
        """Whether it has the token that ends a turn: the template's, or the text's own."""
        return answer.rstrip().endswith(self._tokenizer.special_tokens)

    def _pieces(self, rows: Iterable[Row]) -> Iterator[TokenSequences]:
        examples = (example for row in rows for example in self.of(row))
        while some := list(islice(examples, ROWS_AT_ONCE)):
            yield self._together(some)

    def _together(self, examples: Sequence[TokenizerInput]) -> TokenSequences:
        """Texts of one kind go to the tokenizer at once, which then takes as many threads as it is given."""
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
            hidden=sum(example.hidden for example in examples),
        )
