"""The built-in reward `exact`: 1 for the right text."""

from typing import Any

from areal_like.config.argument_types import Take
from areal_like.rollout.episodes.rewards.stated_result import right_values, take


class ExactReward:
    """Compares the taken part of an answer with the row's `answer`, or any of a list, without white space around."""

    def __init__(self, take: Take = "whole", ignore_case: bool = False) -> None:
        self._take, self._ignore_case = take, ignore_case

    def __call__(self, prompt: Any, completion: str, answer: Any) -> float:
        given = take(self._take, completion)
        right = {self._same(str(each)) for each in right_values(answer)}
        return float(given is not None and self._same(given) in right)

    def _same(self, text: str) -> str:
        return text.strip().casefold() if self._ignore_case else text.strip()
