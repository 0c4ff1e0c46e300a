"""Parameters of built-in losses, read in their source: torch is not loaded to check or to describe them."""

import ast
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.built_in import LOSS_KEYS, LOSSES
from areal_like.config.problems import Problem
from areal_like.config.suggest import nearest

ROOT = Path(__file__).parents[3]
"""The folder of the package."""


class Parameter(NamedTuple):
    """`type` is the name in its annotation, `default` its source; "" for an input or a key, which have none."""

    type: str
    default: str


@cache
def loss_parameters(name: str) -> dict[str, Parameter]:
    """Of a built-in loss, by name."""
    module, _, thing = LOSSES[name].partition(":")
    source = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    function = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == thing)
    named = function.args
    defaults = [None] * len(named.args) + named.kw_defaults
    return {
        each.arg: Parameter(ast.unparse(each.annotation), ast.unparse(default) if default is not None else "")
        for each, default in zip((*named.args, *named.kwonlyargs), defaults, strict=True)
        if each.annotation is not None
    }


def loss_arguments(name: str) -> dict[str, Parameter]:
    """Those in `actor.loss_args`."""
    return {each: parameter for each, parameter in loss_parameters(name).items() if parameter.default}


def described_losses() -> str:
    """The arguments of built-in losses with their defaults."""
    lines = []
    for name in LOSSES:
        if arguments := loss_arguments(name):
            lines.append(f"`{name}` {', '.join(f'{each}={value.default}' for each, value in arguments.items())}")
    return "; ".join(lines)


def built_in_loss_problems(name: str, arguments: dict[str, Any]) -> Iterator[Problem]:
    """Arguments in `actor.loss_args` that the loss does not take, or with a wrong value."""
    known, keys = loss_arguments(name), [key for key in LOSS_KEYS if key in loss_parameters(name)]
    for argument, value in arguments.items():
        path = f"actor.loss_args.{argument}"
        if argument in keys:
            yield Problem(path, f"is a key by itself for {name}; set actor.{argument} instead", also=("actor.loss",))
        elif argument not in known:
            guess = nearest(argument, list(known))
            hint = f"; did you mean {guess[0]}?" if guess else "."
            takes = f" It takes: {', '.join(known)}." if known else " It takes none."
            yield Problem(path, f"{name} takes no such argument{hint}{takes}", also=("actor.loss",))
        elif isinstance(value, bool) or not isinstance(value, int | float):
            yield Problem(path, f"{value!r} is not a number; expected {expected(known[argument])}")
        elif not 0 <= value < math.inf or (value == 0 and known[argument].type == "Positive"):
            yield Problem(path, f"is {value}; expected {expected(known[argument])}")


def expected(parameter: Parameter) -> str:
    return "a number above 0" if parameter.type == "Positive" else "a number of 0 or more"
