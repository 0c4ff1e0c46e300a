"""Writing a text backwards."""

from collections.abc import Sequence

from areal_like.data.tasks.base import Row, Worth
from areal_like.data.tasks.made import LETTERS, Draws, check_sizes, drawn, exchanged
from areal_like.data.tasks.worth import by_places


class Reversing:
    """Small letters of any kind, as `reverse abcd:` and `dcba`."""

    def __init__(self, min_length: int = 3, max_length: int = 8, num_rows: int = 10_000) -> None:
        check_sizes(min_length, max_length, num_rows)
        self.min_length, self.max_length, self.num_rows = min_length, max_length, num_rows

    def rows(self, split: str) -> Sequence[Row]:
        return drawn(self.num_rows, split, self.row)

    def row(self, number: int) -> Row:
        draws = Draws(f"reversing {self.min_length} to {self.max_length}: {number}")
        length = self.min_length + draws.below(self.max_length - self.min_length + 1)
        text = "".join(draws.among(LETTERS) for _ in range(length))
        answer = text[::-1]
        return {"prompt": f"reverse {text}:", "answer": answer, "chosen": answer, "rejected": exchanged(draws, answer)}

    def reward(self, prompt: str, completion: str, answer: str) -> Worth:
        return by_places(completion, answer)
