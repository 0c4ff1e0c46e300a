"""Rewards: the reward of an answer, how a reward function is called, and what it may return."""

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from areal_like.config.sections.reward import ANSWER_SEED, SCORE_PART
from areal_like.data.user_code import config_error

MAX_REWARD = 1e15
"""Its square must fit into single precision, for means and deviations."""

RewardFunction = Callable[..., float | dict[str, float] | Awaitable[float | dict[str, float]]]
"""`f(prompt, completion, **row)`; it gets the values of the row that it has arguments for."""

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Reward:
    """The reward of one answer, and its named parts."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """What evaluations report."""
        return self.parts.get(SCORE_PART, self.value)

    def scaled(self, factor: float) -> "Reward":
        """Its value times the factor; its parts stay."""
        return Reward(self.value * factor, self.parts)


class RewardError(Exception):
    """A reward function failed, also after retries. An error is never a reward of 0."""


def parse_reward(returned: Any) -> Reward:
    """The reward that a function returned. Raises ValueError if it is not valid."""
    if isinstance(returned, Reward):
        named = {name: _number(f"its part {name!r}", value) for name, value in returned.parts.items()}
        return Reward(_number("it", returned.value), named)
    if not isinstance(returned, Mapping):
        return Reward(_number("it", returned))
    parts = {str(name): _number(f"its part {name!r}", value) for name, value in returned.items()}
    added = [value for name, value in parts.items() if name != SCORE_PART]
    if not added:
        content = f"only {SCORE_PART!r}, which is not added to the reward" if parts else "nothing"
        raise ValueError(f"it returned a dict with {content}; add the parts of the reward to it")
    return Reward(_number("the sum of its parts", math.fsum(added)), parts)


def _number(what: str, value: Any) -> float:
    subject = "it returned" if what == "it" else f"{what} is"
    if value is None or isinstance(value, str | bytes | complex) or not hasattr(value, "__float__"):
        raise ValueError(f"{subject} {value!r:.80} ({type(value).__name__}); a reward is a number")
    number = float(value) + 0.0  # a negative zero is shown as 0
    if not abs(number) <= MAX_REWARD:
        what = f"number of at most {MAX_REWARD:g}" if math.isfinite(number) else "finite number"
        raise ValueError(f"{subject} {number}; a reward is a {what}")
    return number


class RewardCall:
    """A reward function with its `args` of the configuration, which override values of a row."""

    def __init__(self, function: RewardFunction, name: str, args: dict[str, Any], section: str = "reward") -> None:
        """`section` is its key in messages."""
        self.function, self.args = function, args
        parameters = list(_parameters(function, name, section))
        self._first_two = {each.name for each in parameters[:2]}
        others = parameters[2:]
        self._takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
        self._takes = {each.name for each in others if each.kind is not inspect.Parameter.VAR_KEYWORD}
        unknown = [] if self._takes_all else [name for name in args if name not in self._takes]
        if unknown:
            takes = f"it takes {', '.join(sorted(self._takes))}" if self._takes else "it takes none"
            raise config_error(
                f"{section}.args", f"{name} takes no argument {unknown[0]!r}; besides prompt and answer, {takes}"
            )
        self.needs = sorted(each.name for each in others if _is_needed(each) and each.name not in {*args, ANSWER_SEED})
        """Values that each row must have."""

    @property
    def is_async(self) -> bool:
        method = getattr(self.function, "__call__", None)  # noqa: B004 - the method itself is needed
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(method)

    def prepare(self) -> None:
        """Calls `prepare_reward` of the reward or its task, if there is one, before the first answer of a process."""
        owner = getattr(self.function, "__self__", self.function)
        if (prepare := getattr(owner, "prepare_reward", None)) is not None:
            prepare()

    async def aclose(self) -> None:
        """Calls the method `aclose` of the reward, if it has one, when no more answers come."""
        if (close := getattr(self.function, "aclose", None)) is not None:
            await close()

    def __call__(self, prompt: str, completion: str, row: Mapping[str, Any], seed: int = 0) -> Any:
        """`seed` is that of the answer."""
        if self._takes_all:
            values = {name: value for name, value in row.items() if name not in self._first_two and name != "prompt"}
        else:
            values = {name: row[name] for name in self._takes if name in row}
            if ANSWER_SEED in self._takes:
                values.setdefault(ANSWER_SEED, seed)
        return self.function(prompt, completion, **(values | self.args))


def _parameters(function: RewardFunction, name: str, section: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a function of a C extension may have no signature
        parameters = []
    named = [each for each in parameters if each.kind in POSITIONAL]
    if len(named) < 2 and not any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        raise config_error(
            f"{section}.name", f"{name} cannot be called as f(prompt, completion): it needs these two arguments"
        )
    return parameters


def _is_needed(parameter: inspect.Parameter) -> bool:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variable
