"""Adding two numbers: small enough for a tiny model to learn on a CPU within minutes."""

from collections.abc import Sequence
from typing import Literal

from areal_like.data.tasks.base import RewardValue, Row
from areal_like.data.tasks.generated import GeneratedRows, HashDraws, check_split, split_of_text
from areal_like.data.tasks.rewards import score_by_position


class Addition:
    """All pairs of numbers with `digits` digits, as `12+34=` and `046`: one digit more, so that every sum fits."""

    def __init__(self, digits: Literal[1, 2, 3] = 2) -> None:
        if isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= 3:
            raise ValueError(f"digits must be 1, 2 or 3, not {digits!r} (4 would be a hundred million pairs)")
        self.digits = digits

    def rows(self, split: str) -> Sequence[Row]:
        check_split(split)
        size = 10**self.digits
        pairs = [pair for pair in range(size * size) if split_of_sum(pair // size, pair % size, self.digits) == split]
        return GeneratedRows(pairs, self.row)

    def row(self, pair: int) -> Row:
        """`pair` is the two numbers, concatenated."""
        first, second = divmod(pair, 10**self.digits)
        prompt, answer = f"{first:0{self.digits}}+{second:0{self.digits}}=", f"{first + second:0{self.digits + 1}}"
        return {"prompt": prompt, "answer": answer, "chosen": answer, "rejected": wrong_sum(prompt, answer)}

    def reward(self, prompt: str, completion: str, answer: str) -> RewardValue:
        return addition_reward(prompt, completion, answer)


def split_of_sum(first: int, second: int, digits: int) -> str:
    return split_of_text(f"addition {digits}: {first}+{second}")


def wrong_sum(prompt: str, answer: str) -> str:
    """A sum with at least one wrong digit: from nearly right to far off."""
    draws = HashDraws(f"wrong {prompt}")
    chosen = 1 + draws.below(2 ** len(answer) - 1)
    others = [str((int(digit) + 1 + draws.below(9)) % 10) for digit in answer]
    return "".join(others[place] if chosen >> place & 1 else digit for place, digit in enumerate(answer))


def addition_reward(prompt: str, completion: str, answer: str) -> RewardValue:
    """A part for each correct digit, the rest for the whole sum; extra characters count as wrong."""
    return score_by_position(completion, answer, "digits")
