"""How a reward function is called: with the prompt, the answer, and those of the row's values that it asks for."""

import inspect
from collections.abc import Mapping
from typing import Any

from areal_like.data.user_code import config_error
from areal_like.rollout.episodes.rewards.base import RewardFunction

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class RewardCall:
    """A function, read once; `args` are those of the configuration, and win over values of a row."""

    def __init__(self, function: RewardFunction, name: str, args: dict[str, Any]) -> None:
        self.function, self.args = function, args
        parameters = list(_parameters(function, name))
        self._first_two = {each.name for each in parameters[:2]}
        others = parameters[2:]
        self._takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
        self._takes = {each.name for each in others if each.kind is not inspect.Parameter.VAR_KEYWORD}
        unknown = [] if self._takes_all else [name for name in args if name not in self._takes]
        if unknown:
            takes = f"it takes {', '.join(sorted(self._takes))}" if self._takes else "it takes none"
            raise config_error(
                "reward.args", f"{name} takes no argument {unknown[0]!r}; besides prompt and answer, {takes}"
            )
        self.needs = sorted(each.name for each in others if _is_needed(each) and each.name not in args)
        """Values that a row must have."""

    @property
    def is_async(self) -> bool:
        called = getattr(self.function, "__call__", None)  # noqa: B004 - the method is what is looked at
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(called)

    def __call__(self, prompt: str, completion: str, row: Mapping[str, Any]) -> Any:
        if self._takes_all:
            said = {name: value for name, value in row.items() if name not in self._first_two and name != "prompt"}
        else:
            said = {name: row[name] for name in self._takes if name in row}
        return self.function(prompt, completion, **(said | self.args))


def _parameters(function: RewardFunction, name: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a function of a C extension may have none to read
        parameters = []
    named = [each for each in parameters if each.kind in POSITIONAL]
    if len(named) < 2 and not any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        raise config_error(
            "reward.name", f"{name} cannot be called as f(prompt, completion): give it these two arguments"
        )
    return parameters


def _is_needed(parameter: inspect.Parameter) -> bool:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variable
