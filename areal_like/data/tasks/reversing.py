"""Writing a text backwards."""

from areal_like.data.tasks.base import Row, Worth
from areal_like.data.tasks.made import LETTERS, Drawn, Draws, exchanged
from areal_like.data.tasks.worth import by_places


class Reversing(Drawn):
    """Small letters of any kind, as `reverse abcd:` and `dcba`."""

    def row(self, number: int) -> Row:
        draws = Draws(f"reversing {self.min_length} to {self.max_length}: {number}")
        text = "".join(draws.among(LETTERS) for _ in range(self.length(draws)))
        answer = text[::-1]
        return {"prompt": f"reverse {text}:", "answer": answer, "chosen": answer, "rejected": exchanged(draws, answer)}

    def reward(self, prompt: str, completion: str, answer: str) -> Worth:
        return by_places(completion, answer)
