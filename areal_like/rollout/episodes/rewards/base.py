"""What a reward is, what it may return, and what else is an error."""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SCORE_PART = "score"
"""The part that evaluations report; it is not added to the reward."""

MAX_REWARD = 1e15
"""Single precision must hold its square: means and deviations are taken of many."""

RewardFunction = Callable[..., float | dict[str, float] | Awaitable[float | dict[str, float]]]
"""`f(prompt, completion, **row)`; it gets those of the row's values that it has arguments for."""


@dataclass(frozen=True)
class Reward:
    """What one answer is worth, and of which parts that is the sum."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)


class RewardError(Exception):
    """A reward could not be had, also after trying again. It is an error, and never stands for a reward of 0."""


def parse_reward(returned: Any) -> Reward:
    """The reward of what a function returned; a ValueError says what is wrong with it."""
    if not isinstance(returned, Mapping):
        return Reward(_number("it", returned))
    parts = {str(name): _number(f"its part {name!r}", value) for name, value in returned.items()}
    added = [value for name, value in parts.items() if name != SCORE_PART]
    if not added:
        held = f"only {SCORE_PART!r}, which is not added to the reward" if parts else "nothing"
        raise ValueError(f"it returned a dict that holds {held}; name the parts of the reward in it")
    return Reward(_number("the sum of its parts", math.fsum(added)), parts)


def _number(what: str, value: Any) -> float:
    said = "it returned" if what == "it" else f"{what} is"
    if value is None or isinstance(value, str | bytes | complex) or not hasattr(value, "__float__"):
        raise ValueError(f"{said} {value!r:.80} ({type(value).__name__}); a reward is a number")
    number = float(value)
    if not abs(number) <= MAX_REWARD:
        what = f"number of at most {MAX_REWARD:g}" if math.isfinite(number) else "finite number"
        raise ValueError(f"{said} {number}; a reward is a {what}")
    return number
