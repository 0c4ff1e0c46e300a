"""Sums that are too long for a tiny model, and that a call of a calculator solves."""

from collections.abc import Sequence
from typing import Literal

from areal_like.config.argument_types import Count
from areal_like.data.tasks.base import RewardValue, Row
from areal_like.data.tasks.generated import GeneratedRows, HashDraws, check_split, split_of_text

FORMS = ("answer", "answer", "answer", "answer", "call", "result", "result", "result")
"""Of imitated rows: the sum at once, which is seldom right; a call; the sum as the calculator gives it."""


class Sums:
    """Rows as `347+589=` and `936`, of numbers with `digits` digits. `calls`: rows to imitate, some of which call a
    calculator: `347+589=` and `[calculator("347+589")]`, or go on from its result."""

    def __init__(self, digits: Literal[2, 3, 4, 5, 6] = 3, calls: bool = False, num_rows: Count = 10_000) -> None:
        if isinstance(digits, bool) or not isinstance(digits, int) or not 2 <= digits <= 6:
            raise ValueError(f"digits must be a number from 2 to 6, not {digits!r}")
        self.digits, self.calls, self.num_rows = digits, calls, num_rows

    def rows(self, split: str) -> Sequence[Row]:
        check_split(split)
        firsts: dict[str, int] = {}
        for number in range(self.num_rows):
            firsts.setdefault(self._sum(number), number)
        return GeneratedRows([number for text, number in firsts.items() if split_of_text(text) == split], self.row)

    def row(self, number: int) -> Row:
        expression = self._sum(number)
        total = sum(map(int, expression.split("+")))
        prompt, answer = f"{expression}=", str(total)
        call = f'[calculator("{expression}")]'
        form = FORMS[HashDraws(f"form of sum {number}").below(len(FORMS))] if self.calls else FORMS[0]
        if form == "call":
            answer = call
        elif form == "result":
            prompt = f"{prompt}{call}<eos> {answer};"
        return {"prompt": prompt, "answer": answer, "chosen": answer, "rejected": str(total + 1), "total": total}

    def reward(self, prompt: object, completion: str, total: int) -> RewardValue:
        return float(completion.strip() == str(total))

    def _sum(self, number: int) -> str:
        draws, least = HashDraws(f"sum of {self.digits} digits: {number}"), 10 ** (self.digits - 1)
        return "+".join(str(least + draws.below(9 * least)) for _ in range(2))
