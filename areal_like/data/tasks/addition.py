"""Adding two numbers: small enough that a tiny model learns it on a CPU within minutes."""

from collections.abc import Sequence
from typing import overload

import xxhash

from areal_like.data.tasks.base import TEST, TRAIN, Row, Worth

TRAIN_PERCENT = 80
DIGITS_SHARE, EXACT_SHARE = 0.3, 0.7


class Addition:
    """All pairs of numbers of `digits` digits, as `12+34=` and `046`: one digit more, so that every sum fits."""

    def __init__(self, digits: int = 2) -> None:
        if isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= 3:
            raise ValueError(f"digits must be 1, 2 or 3, not {digits!r} (4 would be a hundred million pairs)")
        self.digits = digits

    def rows(self, split: str) -> Sequence[Row]:
        if split not in (TRAIN, TEST):
            raise ValueError(f"there is no split {split!r}; there are {TRAIN} and {TEST}")
        size = 10**self.digits
        pairs = [pair for pair in range(size * size) if split_of(pair // size, pair % size, self.digits) == split]
        return Pairs(pairs, self.digits)

    def reward(self, prompt: str, completion: str, answer: str) -> Worth:
        return addition_reward(prompt, completion, answer)


class Pairs(Sequence[Row]):
    """Rows made when they are asked for: a million of them would fill memory for nothing."""

    def __init__(self, pairs: Sequence[int], digits: int) -> None:
        self._pairs, self._digits = pairs, digits

    def __len__(self) -> int:
        return len(self._pairs)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> "Pairs": ...
    def __getitem__(self, index: int | slice) -> "Row | Pairs":
        if isinstance(index, slice):
            return Pairs(self._pairs[index], self._digits)
        first, second = divmod(self._pairs[index], 10**self._digits)
        width = self._digits
        return {"prompt": f"{first:0{width}}+{second:0{width}}=", "answer": f"{first + second:0{width + 1}}"}


def split_of(first: int, second: int, digits: int) -> str:
    """By a hash of the pair: a pair is on the same side for ever, on every machine and whatever the seed."""
    text = f"addition {digits}: {first}+{second}"
    return TRAIN if xxhash.xxh3_64_intdigest(text.encode()) % 100 < TRAIN_PERCENT else TEST


def addition_reward(prompt: str, completion: str, answer: str) -> Worth:
    """A part for each digit in its place, the rest for the whole sum; what is written beyond it counts as wrong."""
    right = sum(said == wanted for said, wanted in zip(completion, answer, strict=False))
    exact = float(completion == answer)
    share = right / max(len(answer), len(completion))
    return {"digits": DIGITS_SHARE * share, "exact": EXACT_SHARE * exact, "score": exact}
