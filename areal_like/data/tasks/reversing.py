"""Reversing a text."""

from areal_like.data.tasks.base import RewardValue, Row
from areal_like.data.tasks.generated import LETTERS, GeneratedTask, HashDraws, swap_neighbours
from areal_like.data.tasks.rewards import score_by_position


class Reversing(GeneratedTask):
    """Lowercase letters, as `reverse abcd:` and `dcba`."""

    def row(self, number: int) -> Row:
        draws = HashDraws(f"reversing {self.min_length} to {self.max_length}: {number}")
        text = "".join(draws.among(LETTERS) for _ in range(self.length(draws)))
        answer = text[::-1]
        return {
            "prompt": f"reverse {text}:",
            "answer": answer,
            "chosen": answer,
            "rejected": swap_neighbours(draws, answer),
        }

    def reward(self, prompt: str, completion: str, answer: str) -> RewardValue:
        return score_by_position(completion, answer)
