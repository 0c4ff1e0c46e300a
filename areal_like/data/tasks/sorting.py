"""Sorting digits."""

from areal_like.data.tasks.base import RewardValue, Row
from areal_like.data.tasks.generated import GeneratedTask, HashDraws, swap_neighbours
from areal_like.data.tasks.rewards import score_by_position

DIGITS = "0123456789"


class Sorting(GeneratedTask):
    """Digits in ascending order, as `sort 31524:` and `12345`."""

    def row(self, number: int) -> Row:
        draws = HashDraws(f"sorting {self.min_length} to {self.max_length}: {number}")
        digits = [draws.among(DIGITS) for _ in range(self.length(draws))]
        answer = "".join(sorted(digits))
        prompt = f"sort {''.join(digits)}:"
        return {"prompt": prompt, "answer": answer, "chosen": answer, "rejected": swap_neighbours(draws, answer)}

    def reward(self, prompt: str, completion: str, answer: str) -> RewardValue:
        return score_by_position(completion, answer)
