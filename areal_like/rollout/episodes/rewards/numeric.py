"""The built-in reward `numeric`: 1 for the right number."""

from fractions import Fraction
from typing import Any

from areal_like.config.argument_types import Take
from areal_like.rollout.episodes.rewards.numbers import last_number, number
from areal_like.rollout.episodes.rewards.stated_result import results, take


class NumericReward:
    """Compares the last number of the taken part with that of the row's `answer`, or with any of a list."""

    def __init__(self, take: Take = "last_number", tolerance: float = 0.0, relative_tolerance: float = 0.0) -> None:
        self._take = take
        self._tolerance, self._relative_tolerance = Fraction(tolerance), Fraction(relative_tolerance)

    def __call__(self, prompt: Any, completion: str, answer: Any) -> float:
        right = [_last(each) for each in results(answer)]
        if not any(value is not None for value in right):
            raise ValueError(f"the row's answer has no number: {answer!r:.80}")
        part = take(self._take, completion)
        given = None if part is None else _last(part)
        return float(given is not None and any(self._equal(given, value) for value in right if value is not None))

    def _equal(self, given: Fraction, right: Fraction) -> bool:
        return abs(given - right) <= max(self._tolerance, self._relative_tolerance * abs(right))


def _last(text: str) -> Fraction | None:
    found = last_number(text)
    return None if found is None else number(found)
