"""Parameters of what is built in, read in the source: nothing is imported to check or to describe them."""

import ast
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.argument_types import misfit
from areal_like.config.built_in import BUILT_IN, LOSS_KEYS, LOSSES
from areal_like.config.problems import Problem
from areal_like.config.suggest import nearest

ROOT = Path(__file__).parents[3]
"""The folder of the package."""


class Parameter(NamedTuple):
    """`type` is its annotation, `default` the source of its default; "" if it has none."""

    type: str
    default: str


@cache
def parameters_of(target: str) -> dict[str, Parameter]:
    """Of a function or class of the product, `package.module:thing`, by name. A class may inherit them."""
    module, _, thing = target.partition(":")
    tree = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
    definition = next(
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == thing
    )
    if isinstance(definition, ast.FunctionDef):
        return _of_function(definition)
    made = [node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    if made:
        return _of_function(made[0])
    origins = {
        alias.name: f"{node.module}:{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    bases = [ast.unparse(base) for base in definition.bases]
    return next((parameters_of(origins[base]) for base in bases if base in origins), {})


def _of_function(function: ast.FunctionDef) -> dict[str, Parameter]:
    """Those with an annotation, which `self` has not."""
    named = function.args
    first = [None] * (len(named.args) - len(named.defaults))
    defaults = (*first, *named.defaults, *named.kw_defaults)
    return {
        each.arg: Parameter(ast.unparse(each.annotation), ast.unparse(default) if default is not None else "")
        for each, default in zip((*named.args, *named.kwonlyargs), defaults, strict=True)
        if each.annotation is not None
    }


def built_in_arguments(kind: str, name: str) -> frozenset[str]:
    """Names of the arguments that can be configured. A reward function gets columns of the row as well, without a
    default."""
    target = BUILT_IN[kind][name]
    takes, is_function = parameters_of(target), target.partition(":")[2].islower()
    return frozenset(each for each, parameter in takes.items() if parameter.default or not is_function)


def built_in_value_problems(kind: str, name: str, args_key: str, arguments: dict[str, Any]) -> Iterator[Problem]:
    """Arguments whose value is not of the annotated type, and arguments that are missing."""
    target = BUILT_IN[kind][name]
    known = {each: parameters_of(target)[each] for each in built_in_arguments(kind, name)}
    for argument, parameter in known.items():
        path = f"{args_key}.{argument}"
        if argument not in arguments:
            if not parameter.default:
                needs = f"{name} needs it: +{path}={argument.upper()}"
                yield Problem(path, f"is missing; {needs}", also=(f"{args_key.removesuffix('args')}name",))
        elif reason := misfit(parameter.type, arguments[argument]):
            yield Problem(path, f"{reason}{_quoted(parameter.type, argument, arguments[argument])}")
    if kind == "gate":
        yield from _order(name, args_key, known, arguments)


def _quoted(annotation: str, argument: str, value: Any) -> str:
    """The remedy for a text that looks like a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f'; quote it: {argument}="{value}"' if is_number and not misfit(annotation, str(value)) else ""


def _order(gate: str, args_key: str, known: dict[str, Parameter], arguments: dict[str, Any]) -> Iterator[Problem]:
    """Of the limits of a built-in gate."""
    low, high = (arguments.get(each, float(known[each].default)) for each in ("low", "high"))
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        path = f"{args_key}.{'low' if 'low' in arguments else 'high'}"
        yield Problem(path, f"low={low:g} is above high={high:g} of {gate}; lower the first or raise the second")


def loss_parameters(name: str) -> dict[str, Parameter]:
    """Of a built-in loss, by name; a loss of the user has none of these."""
    return parameters_of(LOSSES[name]) if name in LOSSES else {}


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
