"""A function whose parameters name its inputs, as a policy loss."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from areal_like.algorithms.losses.base import Inputs, Loss, PolicyLoss


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Whether it can be called with an argument of this name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def by_name(function: Callable[..., Tensor | Loss], arguments: Mapping[str, Any]) -> PolicyLoss:
    """`arguments` come before inputs of the same name."""
    takes = [name for name in Inputs._fields if accepts(function, name) and name not in arguments]

    def loss(inputs: Inputs) -> Tensor | Loss:
        return function(**{name: getattr(inputs, name) for name in takes}, **arguments)

    return loss
