"""Counting a letter in a word: hard for a model that does not see letters."""

from areal_like.data.tasks.base import RewardValue, Row
from areal_like.data.tasks.generated import LETTERS, GeneratedTask, HashDraws
from areal_like.data.tasks.rewards import score_by_distance

KINDS = 4
"""Maximum number of different letters in a word, so that the counted one is repeated."""


class Counting(GeneratedTask):
    """Words of lowercase letters, as `count a in banana:` and `3`."""

    def __init__(self, min_length: int = 3, max_length: int = 12, num_rows: int = 10_000) -> None:
        super().__init__(min_length, max_length, num_rows)

    def row(self, number: int) -> Row:
        draws = HashDraws(f"counting {self.min_length} to {self.max_length}: {number}")
        kinds = "".join(draws.among(LETTERS) for _ in range(KINDS))
        word = "".join(draws.among(kinds) for _ in range(self.length(draws)))
        letter = draws.among(kinds)
        count = word.count(letter)
        wrong = count + 1 if count == 0 else count + (1, -1)[draws.below(2)]
        answer = str(count)
        return {"prompt": f"count {letter} in {word}:", "answer": answer, "chosen": answer, "rejected": str(wrong)}

    def reward(self, prompt: str, completion: str, answer: str) -> RewardValue:
        return score_by_distance(completion, answer)
