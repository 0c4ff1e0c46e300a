"""Word problems of one or two steps, like those of grade schools, short enough for a tiny model."""

import re
from collections.abc import Sequence
from typing import Literal

from areal_like.config.argument_types import Count
from areal_like.data.tasks.base import RewardValue, Row
from areal_like.data.tasks.generated import HashDraws, generate_rows
from areal_like.data.tasks.rewards import score_by_distance

NAMES = ("ann", "ben", "eva", "lea", "max", "mia", "sam", "tom")
THINGS = ("caps", "cups", "eggs", "figs", "hats", "keys", "nuts", "pens")
GAINS = ("buys", "finds", "gets")
LOSSES = ("eats", "loses", "sells")
FORMS = ("{}", "{}", "answer: {}", "answer: {}", "\\boxed{{{}}}")
"""Of answers from several sources; a box is the rarest."""


class WordProblems:
    """Rows as `tom has 3 figs, buys 4, loses 2. how many?` and `5`. `max_steps`: the most changes of the number.
    `mixed_forms`: the row's `answer` is in one of several forms, `5`, `answer: 5` or `\\boxed{5}`."""

    def __init__(
        self, max_number: int = 9, max_steps: Literal[1, 2] = 2, mixed_forms: bool = False, num_rows: Count = 10_000
    ) -> None:
        for name, value, low, high in (("max_number", max_number, 2, 50), ("max_steps", max_steps, 1, 2)):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name} must be a number from {low} to {high}, not {value!r}")
        self.max_number, self.max_steps, self.num_rows = max_number, max_steps, num_rows
        self.forms = FORMS if mixed_forms else FORMS[:1]

    def rows(self, split: str) -> Sequence[Row]:
        return generate_rows(self.num_rows, split, self.row)

    def row(self, number: int) -> Row:
        draws = HashDraws(f"word problem of {self.max_steps} steps up to {self.max_number}: {number}")
        value = 1 + draws.below(self.max_number)
        parts = [f"{_one(draws, NAMES)} has {value} {_one(draws, THINGS)}"]
        for _ in range(1 + draws.below(self.max_steps)):
            change = 1 + draws.below(self.max_number)
            if draws.below(2) and change <= value:
                value, verb = value - change, _one(draws, LOSSES)
            else:
                value, verb = value + change, _one(draws, GAINS)
            parts.append(f"{verb} {change}")
        form = _one(draws, self.forms)
        answer, wrong = form.format(value), form.format(value + 1 if value == 0 else value + (1, -1)[draws.below(2)])
        prompt = f"{', '.join(parts)}. how many?"
        return {"prompt": prompt, "answer": answer, "chosen": answer, "rejected": wrong, "number": value}

    def reward(self, prompt: object, completion: str, number: int) -> RewardValue:
        """Of the last number in the answer."""
        return score_by_distance((re.findall(r"\d+", completion) or [""])[-1], str(number))


def _one(draws: HashDraws, choices: Sequence[str]) -> str:
    return choices[draws.below(len(choices))]
