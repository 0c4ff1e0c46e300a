"""Adding two numbers: small enough that a tiny model learns it on a CPU within minutes."""

from collections.abc import Sequence

from areal_like.data.tasks.base import Row, Worth
from areal_like.data.tasks.made import Draws, Made, check_split, side_of
from areal_like.data.tasks.worth import by_places


class Addition:
    """All pairs of numbers of `digits` digits, as `12+34=` and `046`: one digit more, so that every sum fits."""

    def __init__(self, digits: int = 2) -> None:
        if isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= 3:
            raise ValueError(f"digits must be 1, 2 or 3, not {digits!r} (4 would be a hundred million pairs)")
        self.digits = digits

    def rows(self, split: str) -> Sequence[Row]:
        check_split(split)
        size = 10**self.digits
        pairs = [pair for pair in range(size * size) if split_of(pair // size, pair % size, self.digits) == split]
        return Made(pairs, self.row)

    def row(self, pair: int) -> Row:
        """`pair` is the two numbers, one after the other."""
        first, second = divmod(pair, 10**self.digits)
        prompt, answer = f"{first:0{self.digits}}+{second:0{self.digits}}=", f"{first + second:0{self.digits + 1}}"
        return {"prompt": prompt, "answer": answer, "chosen": answer, "rejected": wrong(prompt, answer)}

    def reward(self, prompt: str, completion: str, answer: str) -> Worth:
        return addition_reward(prompt, completion, answer)


def split_of(first: int, second: int, digits: int) -> str:
    return side_of(f"addition {digits}: {first}+{second}")


def wrong(prompt: str, answer: str) -> str:
    """A sum of which some digits, one at least, are others: of some it is nearly right, of some far from it."""
    draws = Draws(f"wrong {prompt}")
    chosen = 1 + draws.below(2 ** len(answer) - 1)
    others = [str((int(digit) + 1 + draws.below(9)) % 10) for digit in answer]
    return "".join(others[place] if chosen >> place & 1 else digit for place, digit in enumerate(answer))


def addition_reward(prompt: str, completion: str, answer: str) -> Worth:
    """A part for each digit in its place, the rest for the whole sum; what is written beyond it counts as wrong."""
    return by_places(completion, answer, "digits")
