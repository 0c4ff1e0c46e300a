"""Countdown: an expression of given numbers that equals a target."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from areal_like.data.arithmetic import NotArithmetic, evaluate, numbers_in
from areal_like.data.tasks.base import RewardValue, Row
from areal_like.data.tasks.generated import HashDraws, generate_rows

VALID_SHARE, RIGHT_SHARE = 0.2, 0.8
OPEN, CLOSE = "<answer>", "</answer>"
MAX_TARGET = 999


class Countdown:
    """Rows as `3 4 5 -> 17:` and `3*4+5`: every row has a solution that uses each number once. The columns `numbers`
    and `target` are for prompt templates and rewards."""

    def __init__(self, num_numbers: Literal[2, 3, 4, 5, 6] = 3, max_number: int = 9, num_rows: int = 10_000) -> None:
        for name, value, low, high in (
            ("num_numbers", num_numbers, 2, 6),
            ("max_number", max_number, 2, 99),
            ("num_rows", num_rows, 10, 100_000),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name} must be a number from {low} to {high}, not {value!r}")
        self.num_numbers, self.max_number, self.num_rows = num_numbers, max_number, num_rows

    def rows(self, split: str) -> Sequence[Row]:
        return generate_rows(self.num_rows, split, self.row)

    def row(self, number: int) -> Row:
        draws = HashDraws(f"countdown {self.num_numbers} of {self.max_number}: {number}")
        while True:
            numbers = [1 + draws.below(self.max_number) for _ in range(self.num_numbers)]
            answer, target = _expression(draws, numbers)
            if 0 < target <= MAX_TARGET:
                break
        shown = sorted(numbers)  # so that no order of the same numbers is in both splits
        wrong = _expression(draws, shown)[0]
        while evaluate(wrong) == target:
            wrong = _expression(draws, shown[:-1])[0] if len(shown) > 2 else str(shown[0] + target)
        prompt = f"{' '.join(map(str, shown))} -> {target}:"
        return {
            "prompt": prompt,
            "answer": answer,
            "chosen": answer,
            "rejected": wrong,
            "numbers": shown,
            "target": target,
        }

    def reward(self, prompt: object, completion: str, numbers: list[int], target: int) -> RewardValue:
        return countdown_reward(prompt, completion, numbers, target)


def _expression(draws: HashDraws, numbers: Sequence[int]) -> tuple[str, int]:
    """A random expression of these numbers, from the left to the right, and its value: a whole number."""
    text, value, is_sum = str(numbers[0]), numbers[0], False
    for number in numbers[1:]:
        sign = "+-*/"[draws.below(4)]
        if sign == "/" and value % number:
            sign = "*"
        text = f"({text})" if is_sum and sign in "*/" else text
        text, is_sum = f"{text}{sign}{number}", sign in "+-"
        value = {"+": value + number, "-": value - number, "*": value * number, "/": value // number}[sign]
    return text, value


def countdown_reward(prompt: object, completion: str, numbers: list[int], target: int) -> RewardValue:
    """A part for an expression that uses each number once, the rest if it equals the target. The expression is
    in the last `<answer>` tag; without one it is the last line, up to an equals sign."""
    given = Counter(int(each) for each in numbers)
    try:
        value, used = evaluate(stated := _stated(completion)), Counter(numbers_in(stated))
    except NotArithmetic:
        return _parts(is_valid=False, is_right=False)
    return _parts(is_valid=used == given, is_right=used == given and value == int(target))


def _parts(is_valid: bool, is_right: bool) -> RewardValue:
    return {"valid": VALID_SHARE * is_valid, "right": RIGHT_SHARE * is_right, "score": float(is_right)}


def _stated(completion: str) -> str:
    if OPEN in completion:
        return completion.rpartition(OPEN)[2].partition(CLOSE)[0].partition("=")[0]
    return (completion.strip().splitlines() or [""])[-1].partition("=")[0]
