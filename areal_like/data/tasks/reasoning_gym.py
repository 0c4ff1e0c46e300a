"""Puzzles of the package reasoning-gym, which makes and scores them."""

import re
from collections.abc import Sequence
from typing import Any

from areal_like.config.argument_types import Count
from areal_like.data.answer_text import tagged
from areal_like.data.tasks.base import RewardValue, Row
from areal_like.data.tasks.evaluating_scorers import evaluating_puzzles
from areal_like.data.tasks.generated import generate_rows
from areal_like.data.tasks.sandboxed_scorer import SandboxedScorer
from areal_like.data.tasks.scorer_server import score

ARITHMETIC = re.compile(r"(?:[\d+\-/() .]|(?<!\*)\*(?!\*))*", re.ASCII)
FORMULA = re.compile(r"(?:(?<![a-zA-Z])(?:[a-zA-Z]|sin|cos|tan|exp|log|sqrt)(?![a-zA-Z])|[\d+\-*/^() .])*", re.ASCII)
HUGE_POWER = re.compile(r"(?:\*\*|\^)(?!\s*(?:\d{1,2}|\(-?\d{1,2}(?:/\d{1,2})?\))(?![\d.])(?!\s*(?:\*\*|\^)))")
"""A power whose exponent is more than a small number: computing it may take forever."""
FILTERS = {
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
"""Puzzle -> the answers that its scorer may see. It evaluates them as Python in the sandbox: there a program can do no
harm, but could claim any score."""
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
        arguments = {**(config or {}), "size": num_rows, "seed": seed}
        self._puzzles: Any = reasoning_gym.create_dataset(dataset, **arguments)
        self._sandboxed = SandboxedScorer(dataset, arguments) if dataset in evaluating_puzzles() else None

    def rows(self, split: str) -> Sequence[Row]:
        return generate_rows(self._num_rows, split, self.row)

    def row(self, number: int) -> Row:
        puzzle = self._puzzles[number]
        return {"prompt": puzzle["question"], "answer": puzzle["answer"], "puzzle": number}

    def prepare_reward(self) -> None:
        if self._sandboxed is not None:
            self._sandboxed.prepare()

    def reward(self, prompt: Any, completion: str, puzzle: int, answer: Any = None) -> RewardValue:
        """What reasoning-gym gives, from 0 to 1; the score counts only full marks. The answer is the last `<answer>`
        tag, or all of the text."""
        own = self._puzzles[puzzle]
        if answer is not None and own["answer"] != answer:
            differs = f"puzzle {puzzle} of {self._name} is another one here, as it depends on Python's hashes"
            raise ValueError(f"{differs}: export PYTHONHASHSEED=0 for all processes of the run")
        stated = tagged(completion)
        value = self._graded(completion.strip() if stated is None else stated, own)
        return {"graded": value, "score": float(value >= 1)}

    def _graded(self, answer: str, puzzle: dict[str, Any]) -> float:
        allowed = FILTERS.get(self._name)
        if len(answer) > MAX_ANSWER:
            return 0.0
        if allowed is not None and (allowed.fullmatch(answer) is None or HUGE_POWER.search(answer) is not None):
            return 0.0
        if self._sandboxed is not None:
            return self._sandboxed.score(answer, puzzle)
        found = score(self._puzzles, answer, puzzle)
        if "broken" in found:
            raise ValueError(f"the scorer of {self._name} fails with the answer of the puzzle: {found['broken']}")
        return float(found["value"])
