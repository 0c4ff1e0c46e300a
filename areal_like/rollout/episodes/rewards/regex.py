"""The built-in reward `regex`: 1 for an answer that has a pattern in it."""

import re
from typing import Any

from areal_like.config.argument_types import Pattern
from areal_like.rollout.episodes.rewards.stated_result import alternatives

ANSWER = "{answer}"
"""Stands for the row's `answer` in a pattern, as plain text; for any of a list."""


class RegexReward:
    """`whole`: all of the answer must match. A dot matches line breaks, too."""

    def __init__(self, pattern: Pattern, whole: bool = False, ignore_case: bool = False) -> None:
        self._pattern, self._whole = pattern, whole
        self._flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)

    def __call__(self, prompt: Any, completion: str, answer: Any = None) -> float:
        answers = [re.escape(str(each)) for each in alternatives(answer) if each is not None]
        if ANSWER in self._pattern and not answers:
            raise ValueError(f"the pattern has {ANSWER}, and the row has no answer")
        plain = answers[0] if len(answers) == 1 else f"(?:{'|'.join(answers)})"
        pattern = re.compile(self._pattern.replace(ANSWER, plain), self._flags)
        return float((pattern.fullmatch if self._whole else pattern.search)(completion) is not None)
