"""The built-in reward `regex`: 1 for an answer that has a pattern in it."""

import re
from typing import Any

from areal_like.config.argument_types import Pattern

ANSWER = "{answer}"
"""Stands for the row's `answer` in a pattern, as plain text."""


class RegexReward:
    """`whole`: all of the answer must match. A dot matches line breaks, too."""

    def __init__(self, pattern: Pattern, whole: bool = False, ignore_case: bool = False) -> None:
        self._pattern, self._whole = pattern, whole
        self._flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)

    def __call__(self, prompt: Any, completion: str, answer: Any = None) -> float:
        if ANSWER in self._pattern and answer is None:
            raise ValueError(f"the pattern has {ANSWER}, and the row has no answer")
        pattern = re.compile(self._pattern.replace(ANSWER, re.escape(str(answer))), self._flags)
        return float((pattern.fullmatch if self._whole else pattern.search)(completion) is not None)
