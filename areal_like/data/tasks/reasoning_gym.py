"""Puzzles of the package reasoning-gym, which makes and scores them."""

import re
from collections.abc import Sequence
from typing import Any

from areal_like.config.argument_types import Count
from areal_like.data.answer_text import tagged
from areal_like.data.tasks.base import RewardValue, Row
from areal_like.data.tasks.generated import generate_rows

ARITHMETIC = re.compile(r"(?:[\d+\-/() .]|(?<!\*)\*(?!\*))*", re.ASCII)
FORMULA = re.compile(r"(?:(?<![a-zA-Z])(?:[a-zA-Z]|sin|cos|tan|exp|log|sqrt)(?![a-zA-Z])|[\d+\-*/^() .])*", re.ASCII)
HUGE_POWER = re.compile(r"(?:\*\*|\^)(?!\s*(?:\d{1,2}|\(-?\d{1,2}(?:/\d{1,2})?\))(?![\d.])(?!\s*(?:\*\*|\^)))")
"""A power whose exponent is more than a small number: computing it may take forever."""
EVALUATED = {
    "binary_matrix": re.compile(r"[\[\],\d\s]*"),
    "countdown": ARITHMETIC,
    "intermediate_integration": FORMULA,
    "n_queens": re.compile(r"""[\[\],"'Q_\s]*"""),
    "polynomial_multiplication": FORMULA,
    "puzzle24": ARITHMETIC,
    "simple_integration": FORMULA,
    "spiral_matrix": re.compile(r"[\[\],\d\s-]*"),
    "string_insertion": re.compile(r"""[\[\],"'A-Z\s]*"""),
}
"""Puzzle -> the answers that its scorer may see: it evaluates them as Python, and a model could write a program."""
REFUSED = {
    "codeio": "it runs programs of its data in this process",
    "composite": "it is a mix; use one of its puzzles",
}
MAX_ANSWER = 10_000


class ReasoningGym:
    """`dataset` is a puzzle of reasoning-gym, `config` its own arguments. Of `num_rows` puzzles those with another
    question are kept, and divided into training and held-out rows by their text."""

    def __init__(
        self, dataset: str = "chain_sum", config: dict[str, Any] | None = None, num_rows: Count = 1000, seed: int = 1
    ) -> None:
        if dataset in REFUSED:
            raise ValueError(f"dataset={dataset} cannot be used: {REFUSED[dataset]}")
        import reasoning_gym  # type: ignore[import-untyped]

        self._name, self._num_rows = dataset, num_rows
        self._puzzles: Any = reasoning_gym.create_dataset(dataset, **{**(config or {}), "size": num_rows, "seed": seed})

    def rows(self, split: str) -> Sequence[Row]:
        return generate_rows(self._num_rows, split, self.row)

    def row(self, number: int) -> Row:
        puzzle = self._puzzles[number]
        return {"prompt": puzzle["question"], "answer": puzzle["answer"], "puzzle": number}

    def reward(self, prompt: Any, completion: str, puzzle: int) -> RewardValue:
        """What reasoning-gym gives, from 0 to 1; the score counts only full marks. The answer is the last `<answer>`
        tag, or all of the text."""
        stated = tagged(completion)
        value = self._graded(completion.strip() if stated is None else stated, self._puzzles[puzzle])
        return {"graded": value, "score": float(value >= 1)}

    def _graded(self, answer: str, puzzle: dict[str, Any]) -> float:
        allowed = EVALUATED.get(self._name)
        if len(answer) > MAX_ANSWER:
            return 0.0
        if allowed is not None and (allowed.fullmatch(answer) is None or HUGE_POWER.search(answer) is not None):
            return 0.0
        try:
            return float(self._puzzles.score_answer(answer, puzzle))
        except Exception as fault:
            self._check_scorer(puzzle, fault)
            return 0.0

    def _check_scorer(self, puzzle: dict[str, Any], fault: Exception) -> None:
        """An answer that the scorer cannot read is wrong. Raises where it cannot read the puzzle's own answer: then the
        puzzle is at fault, and its row has no reward."""
        try:
            if puzzle["answer"] is not None:
                self._puzzles.score_answer(puzzle["answer"], puzzle)
        except Exception as own:
            raise ValueError(f"the scorer of {self._name} fails with the answer of the puzzle: {own}") from fault
