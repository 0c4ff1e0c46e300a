"""Checks tasks, workflows, rewards, losses, samplers and gates by name: a built-in, `pkg.module:thing` (or
`pkg.module.thing`), or `file.py:thing`.

User code is parsed, never imported: it must exist, accept the configured arguments, and have methods that can be called
as a run calls them. Signatures that are made at run time are left to the worker; so are modules that are missing on
this machine, except that of a loss: trainers run where the command is given.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from areal_like.config.argument_types import literal_misfit
from areal_like.config.built_in import BUILT_IN
from areal_like.config.checks.built_in_code import (
    built_in_arguments,
    built_in_loss_problems,
    built_in_value_problems,
    parameters_of,
)
from areal_like.config.checks.rewards import rewards_in
from areal_like.config.checks.user_methods import REWARD, method_problems
from areal_like.config.problems import Problem
from areal_like.config.sections.reward import REWARD_OF_TASK
from areal_like.config.sources.library import data_folder
from areal_like.config.suggest import nearest

LOSS_INPUTS = (
    *("logprobs", "old_logprobs", "proximal_logprobs", "reference_logprobs", "advantages", "entropy"),
    *("loss_mask", "cu_seqlens", "weights", "kl_ctl"),
)
"""Arguments that the trainer passes to a user's loss by name, if it has them."""


TOOL = "tool"
SEARCH, SEARCH_PATH = "search", "search_path"


@dataclass(frozen=True)
class Signature:
    """Argument names of a function or class, some with their annotation; `open` if it takes any."""

    names: frozenset[str]
    open: bool
    required: frozenset[str] = frozenset()
    types: Mapping[str, str] = field(default_factory=dict)


def split_name(name: str) -> tuple[str, str]:
    """Splits `place:thing` into module or file, and name; the first is empty if there is none."""
    place, _, thing = name.rpartition(":" if ":" in name or name.endswith(".py") else ".")
    return place, thing


def is_built_in(name: str) -> bool:
    return ":" not in name and "." not in name


def user_code_problems(values: dict[str, Any], folder: Path) -> Iterator[Problem]:
    """Problems of the named things; `folder` is that of the experiment's file."""
    rewards = rewards_in(values)
    for section in ("task", "workflow"):
        gives_reward = not rewards or REWARD_OF_TASK in {reward.name for reward in rewards}
        yield from named_problems(section, values.get(section), folder, gives_reward)
    for reward in (each for each in rewards if each.name != REWARD_OF_TASK):
        yield from _named("reward", f"{reward.section}.name", reward.name, reward.args, folder)
    yield from _curriculum_problems(values.get("curriculum") or {}, folder)
    actor = values.get("actor")
    if isinstance(actor, dict) and isinstance(actor.get("loss"), str):
        yield from _named("actor.loss", "actor.loss", actor["loss"], actor.get("loss_args") or {}, folder)


def _curriculum_problems(curriculum: dict[str, Any], folder: Path) -> Iterator[Problem]:
    sampler = curriculum.get("sampler") or {}
    if isinstance(sampler.get("name"), str):
        yield from _named("sampler", "curriculum.sampler.name", sampler["name"], sampler.get("args") or {}, folder)
    for index, gate in enumerate(curriculum.get("gates") or ()):
        if isinstance(gate.get("name"), str):
            key = f"curriculum.gates.{index}.name"
            yield from _named("gate", key, gate["name"], gate.get("args") or {}, folder)


def named_problems(section: str, named: Any, folder: Path, rewards: bool) -> Iterator[Problem]:
    """Of a section with a name and arguments; `rewards`: a task is to have a reward."""
    if isinstance(named, dict) and isinstance(named.get("name"), str):
        yield from _named(section, f"{section}.name", named["name"], named.get("args") or {}, folder, rewards)


def _named(
    kind: str, key: str, name: str, arguments: dict[str, Any], folder: Path, rewards: bool = False
) -> Iterator[Problem]:
    known = list(BUILT_IN.get(kind, ()))
    if is_built_in(name):
        if name not in known:
            is_algorithm = (data_folder("conf") / "algorithm" / f"{name}.yaml").is_file()
            guess = nearest(name, known) if not (kind == "actor.loss" and is_algorithm) else []
            hint = f"; did you mean {guess[0]}?" if guess else ""
            whole = "; whole algorithms are chosen by algorithm=NAME" if kind == "actor.loss" else ""
            there_are = f" There are: {', '.join(known)};" if known else ""
            yield Problem(
                key,
                f"{name!r} is not built in{hint or ('.' if known else ';')}{there_are} "
                f"your own is named as pkg.module:thing or file.py:thing{whole}",
            )
            return
        if kind == "actor.loss":
            yield from built_in_loss_problems(name, arguments)
        else:
            yield from _arguments(kind, key, name, arguments, Signature(built_in_arguments(kind, name), open=False))
            misfits = list(built_in_value_problems(kind, name, _args_key(kind, key), arguments))
            yield from misfits or _tools(kind, name, f"{_args_key(kind, key)}.tools", arguments, folder)
        return
    place, thing = split_name(name)
    if not thing.isidentifier() or not place:
        yield Problem(key, f"{name!r} is not a valid name; write pkg.module:thing or file.py:thing")
        return
    source = find_source(place, folder)
    if source is None:
        if place.endswith(".py"):
            yield Problem(
                key, f"there is no file {place} (searched beside the experiment's file and in the working directory)"
            )
        elif kind == "actor.loss" and is_missing_module(place, folder):
            yield Problem(
                key,
                f"there is no module {place} (searched beside the experiment's file, in the working directory, "
                "and among installed modules); a file is named as file.py:thing",
            )
        return
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        why = f" (line {error.lineno}): {error.msg}" if isinstance(error, SyntaxError) else f": {error}"
        yield Problem(key, f"{source} cannot be read as Python: {error.__class__.__name__}{why}")
        return
    names, definition = _look_up(tree, thing)
    expected = "a function" if kind in ("reward", "actor.loss", TOOL) else "a class"
    if definition is None:
        if thing in names and (plain := _plain_value(tree, thing)) is not None:
            yield Problem(key, f"{name} is {plain}, not {expected}")
        elif thing not in names and "*" not in names:
            guess = nearest(thing, sorted(names))
            yield Problem(key, f"{source} has no {thing}" + (f"; did you mean {guess[0]}?" if guess else ""))
        return
    if kind in ("actor.loss", TOOL) and isinstance(definition, ast.ClassDef):
        yield Problem(key, f"{name} is a class, not {expected}")
        return
    signature = _signature(definition)
    if kind == TOOL:
        return
    if signature is not None:
        yield from _arguments(kind, key, name, arguments, signature)
        if kind == "actor.loss":
            yield from _inputs(name, arguments, signature)
    if kind != "actor.loss":
        missing = signature.required - set(arguments) if signature is not None else ()
        yield from (Problem(key, reason) for reason in method_problems(kind, name, definition, rewards, missing))


def _tools(kind: str, name: str, key: str, arguments: dict[str, Any], folder: Path) -> Iterator[Problem]:
    """Functions of the user's own among the tools of a built-in workflow, and the folder of the tool `search`."""
    taken = parameters_of(BUILT_IN[kind][name]).get("tools")
    if taken is not None and "ToolNames" in taken.type:
        tools = arguments.get("tools") or ()
        for tool in tools:
            if not is_built_in(tool):
                yield from _named(TOOL, key, tool, {}, folder)
        if SEARCH in tools and arguments.get(SEARCH_PATH) is None:
            path = f"{key.removesuffix('tools')}{SEARCH_PATH}"
            yield Problem(path, f"is missing; the tool {SEARCH} needs it: +{path}=FOLDER", also=(key,))


def _arguments(kind: str, key: str, name: str, arguments: dict[str, Any], signature: Signature) -> Iterator[Problem]:
    for argument, value in arguments.items():
        if argument in signature.types and (reason := literal_misfit(signature.types[argument], value)):
            yield Problem(f"{_args_key(kind, key)}.{argument}", reason)
    if signature.open:
        return
    known = sorted(signature.names - set(LOSS_INPUTS) if kind == "actor.loss" else signature.names)
    for argument in arguments:
        if argument not in signature.names:
            guess = nearest(argument, known)
            hint = f"; did you mean {guess[0]}?" if guess else ""
            takes = f" It takes: {', '.join(known)}." if known else " It takes none."
            path = f"{_args_key(kind, key)}.{argument}"
            yield Problem(path, f"{name} takes no such argument{hint or '.'}{takes}", also=(key,))


def _args_key(kind: str, key: str) -> str:
    """The key of the arguments; `key` is that of the name."""
    return "actor.loss_args" if kind == "actor.loss" else f"{key.removesuffix('.name')}.args"


def _inputs(name: str, arguments: dict[str, Any], signature: Signature) -> Iterator[Problem]:
    """Of a loss: arguments passed by the trainer must not be configured, and all others must be."""
    for argument in arguments:
        if argument in LOSS_INPUTS:
            yield Problem(f"actor.loss_args.{argument}", "is passed by the trainer; leave it out")
    if missing := sorted(signature.required - set(LOSS_INPUTS) - set(arguments)):
        needs = f"{name} needs {', '.join(missing)}, but a loss gets {', '.join(LOSS_INPUTS)}, by these names"
        yield Problem(
            "actor.loss",
            f"{needs}; rename parameters that mean one of them, and give your own parameters a default, or a value in "
            "actor.loss_args",
            also=("actor.loss_args",),
        )


def find_source(place: str, folder: Path) -> Path | None:
    """The file of a module or of a `.py` path, without importing anything."""
    if place.endswith(".py"):
        path = Path(place).expanduser()
        candidates = [path] if path.is_absolute() else [folder / path, Path.cwd() / path]
        return next((candidate for candidate in candidates if candidate.is_file()), None)
    if not all(part.isidentifier() for part in place.split(".")):
        return None
    below = Path(*place.split("."))
    for root in (folder, Path.cwd(), *map(Path, sys.path)):
        for candidate in (root / below.with_suffix(".py"), root / below / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def is_missing_module(place: str, folder: Path) -> bool:
    """Whether this machine has no such module, neither in `folder`. Nothing is imported."""
    top, *below = place.split(".")
    try:
        spec = PathFinder.find_spec(top, [str(folder), str(Path.cwd())]) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    for part in below:
        if spec is None:
            return True
        if spec.submodule_search_locations is None:  # a plain module may define others, as os does os.path
            return False
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec is None


def task_has_reward(name: str, folder: Path) -> bool:
    """Whether the source of a task, built in or the user's, defines a reward in its class."""
    place, thing = split_name(BUILT_IN["task"].get(name, name))
    source = find_source(place, folder)
    try:
        tree = ast.parse("" if source is None else source.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return False
    definition = _look_up(tree, thing)[1]
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return any(isinstance(node, Definition) and node.name == REWARD.name for node in body)


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
LITERAL = ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.JoinedStr


def _look_up(tree: ast.Module, thing: str) -> tuple[set[str], Definition | None]:
    """The top-level names of a module, and the definition of one of them if it is unique."""
    names: set[str] = set()
    for node in ast.walk(tree) if _branches(tree) else tree.body:
        if isinstance(node, Definition):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    definitions = [node for node in _top(tree.body) if isinstance(node, Definition) and node.name == thing]
    plain = len(definitions) == 1 or all(node in tree.body for node in definitions)
    return names, definitions[-1] if definitions and plain else None


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those below `if`, `try` and `with`; not those of functions and classes."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _top(node.body)
            yield from _top(getattr(node, "orelse", []))
            yield from _top(getattr(node, "finalbody", []))
            for handler in getattr(node, "handlers", []):
                yield from _top(handler.body)


def _plain_value(tree: ast.Module, thing: str) -> str | None:
    """The literal that a name is bound to, such as 3 or [1, 2], if it is bound to nothing else."""
    values: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values += [node.value for target in targets if isinstance(target, ast.Name) and target.id == thing]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound = ((alias.asname or alias.name).split(".")[0] for alias in node.names)
            values += [None for name in bound if name in (thing, "*")]  # the name itself, or unknown names
        elif isinstance(node, ast.Global) and thing in node.names:
            values.append(None)
    literals = [value for value in values if isinstance(value, LITERAL)]
    return f"{ast.unparse(literals[-1]):.40}" if literals and len(literals) == len(values) else None


def _branches(tree: ast.Module) -> bool:
    """Whether top-level names may be bound below `if`, `try` or `with`."""
    return any(isinstance(node, ast.If | ast.Try | ast.With) for node in tree.body)


def _signature(definition: Definition) -> Signature | None:
    """None if the source does not tell (a decorator, a base class)."""
    if isinstance(definition, ast.ClassDef):
        made = next(
            (node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None
        )
        if made is not None:
            return _signature_of_function(made, bound=True)
        if definition.bases or definition.decorator_list:
            return None
        return Signature(frozenset(), open=False)
    return None if definition.decorator_list else _signature_of_function(definition, bound=False)


def _signature_of_function(function: ast.FunctionDef | ast.AsyncFunctionDef, bound: bool) -> Signature:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)][1 if bound else 0 :]
    required = names[: len(names) - len(arguments.defaults)]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        names.append(argument.arg)
        if default is None:
            required.append(argument.arg)
    types = {
        argument.arg: ast.unparse(argument.annotation)
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        if argument.annotation is not None
    }
    return Signature(frozenset(names), arguments.kwarg is not None, frozenset(required), types)
