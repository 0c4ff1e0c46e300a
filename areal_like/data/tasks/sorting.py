"""Putting digits into order."""

from areal_like.data.tasks.base import Row, Worth
from areal_like.data.tasks.made import Drawn, Draws, exchanged
from areal_like.data.tasks.worth import by_places

DIGITS = "0123456789"


class Sorting(Drawn):
    """Digits, the smallest first, as `sort 31524:` and `12345`."""

    def row(self, number: int) -> Row:
        draws = Draws(f"sorting {self.min_length} to {self.max_length}: {number}")
        digits = [draws.among(DIGITS) for _ in range(self.length(draws))]
        answer = "".join(sorted(digits))
        prompt = f"sort {''.join(digits)}:"
        return {"prompt": prompt, "answer": answer, "chosen": answer, "rejected": exchanged(draws, answer)}

    def reward(self, prompt: str, completion: str, answer: str) -> Worth:
        return by_places(completion, answer)
