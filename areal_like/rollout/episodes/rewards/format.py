"""The built-in reward `format`: 1 for an answer of the right form, whatever it says."""

import re
from typing import Any

from areal_like.data.answer_text import boxed as content_of_box

THINK_THEN_ANSWER = ("think", "answer")


class FormatReward:
    """The answer consists of these tags (default: `<think>...</think><answer>...</answer>`), each once and in this
    order, with nothing but white space around them. `boxed`: it has a \\boxed result as well."""

    def __init__(self, tags: list[str] | None = None, boxed: bool = False) -> None:
        names = THINK_THEN_ANSWER if tags is None else tags
        inside = rf"(?:(?!</?(?:{'|'.join(map(re.escape, names))})>).)*"
        parts = [rf"<{re.escape(name)}>{inside}</{re.escape(name)}>" for name in names]
        self._pattern = re.compile(r"\s*" + r"\s*".join(parts) + r"\s*", re.DOTALL) if names else None
        self._boxed = boxed

    def __call__(self, prompt: Any, completion: str) -> float:
        has_tags = self._pattern is None or self._pattern.fullmatch(completion) is not None
        return float(has_tags and (not self._boxed or content_of_box(completion) is not None))
