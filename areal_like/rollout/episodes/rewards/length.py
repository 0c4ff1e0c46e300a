"""The built-in reward `length`: 0 for an answer of the right length, down to -1 for one too long or too short."""

from typing import Any, Literal

from areal_like.config.argument_types import Count


class LengthReward:
    """Falls linearly from 0 at `soft_limit` (default: 0) to -1 at `limit`, and below `minimum` to -1 for an empty
    answer. Lengths are in characters, or in words."""

    def __init__(
        self, limit: Count, soft_limit: int = 0, minimum: int = 0, unit: Literal["characters", "words"] = "characters"
    ) -> None:
        if not 0 <= minimum <= limit or not 0 <= soft_limit < limit:
            raise ValueError(f"minimum={minimum} and soft_limit={soft_limit} must be 0 or more and below limit={limit}")
        self._limit, self._soft_limit, self._minimum, self._unit = limit, soft_limit, minimum, unit

    def __call__(self, prompt: Any, completion: str) -> float:
        length = len(completion) if self._unit == "characters" else len(completion.split())
        if length < self._minimum:
            return length / self._minimum - 1.0
        return -min(1.0, max(0.0, (length - self._soft_limit) / (self._limit - self._soft_limit)))
