"""Adding two numbers: small enough that a tiny model learns it on a CPU within minutes."""

from collections.abc import Sequence

from areal_like.data.tasks.base import RewardValue, Row
from areal_like.data.tasks.generated import GeneratedRows, HashDraws, check_split, split_of_text
from areal_like.data.tasks.rewards import score_by_position


class Addition:
    """All pairs of numbers of `digits` digits, as `12+34=` and `046`: one digit more, so that every sum fits."""

    def __init__(self, digits: int = 2) -> None:
        if isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= 3:
            raise ValueError(f"digits must be 1, 2 or 3, not {digits!r} (4 would be a hundred million pairs)")
        self.digits = digits

    def rows(self, split: str) -> Sequence[Row]:
        check_split(split)
        size = 10**self.digits
        pairs = [pair for pair in range(size * size) if split_of_sum(pair // size, pair % size, self.digits) == split]
        return GeneratedRows(pairs, self.row)

    def row(self, pair: int) -> Row:
        """`pair` is the two numbers, one after the other."""
        first, second = divmod(pair, 10**self.digits)
        prompt, answer = f"{first:0{self.digits}}+{second:0{self.digits}}=", f"{first + second:0{self.digits + 1}}"
        return {"prompt": prompt, "answer": answer, "chosen": answer, "rejected": wrong_sum(prompt, answer)}

    def reward(self, prompt: str, completion: str, answer: str) -> RewardValue:
        return addition_reward(prompt, completion, answer)


def split_of_sum(first: int, second: int, digits: int) -> str:
    return split_of_text(f"addition {digits}: {first}+{second}")


def wrong_sum(prompt: str, answer: str) -> str:
    """A sum of which some digits, one at least, are others: of some it is nearly right, of some far from it."""
    draws = HashDraws(f"wrong {prompt}")
    chosen = 1 + draws.below(2 ** len(answer) - 1)
    others = [str((int(digit) + 1 + draws.below(9)) % 10) for digit in answer]
    return "".join(others[place] if chosen >> place & 1 else digit for place, digit in enumerate(answer))


def addition_reward(prompt: str, completion: str, answer: str) -> RewardValue:
    """A part for each digit in its place, the rest for the whole sum; what is written beyond it counts as wrong."""
    return score_by_position(completion, answer, "digits")
