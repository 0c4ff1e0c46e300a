"""Tasks, workflows, rewards and losses by name: a built-in, `pkg.module:thing` (or `pkg.module.thing`), or
`file.py:thing`.

Code of a user's is read, never imported: that it is there, takes the arguments that the configuration gives it, and has
methods that can be called as a run calls them.
What cannot be read so (a signature made at run time) is left to the worker; so is a module that is not on this machine,
but for that of a loss: trainers are where the command is given.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from areal_like.config.checks.user_methods import method_problems
from areal_like.config.suggest import nearest

BUILT_IN: dict[str, dict[str, frozenset[str]]] = {
    "task": {
        "addition": frozenset({"digits"}),
        **dict.fromkeys(("counting", "reversing", "sorting"), frozenset({"min_length", "max_length", "num_rows"})),
    },
    "workflow": {"single_turn": frozenset()},
    "reward": {"addition": frozenset(), "model": frozenset({"path"})},
    "actor.loss": {"ppo": frozenset(), "importance_sampling": frozenset()},
}
"""The names that are ours, and the arguments that each takes."""

LOSS_INPUTS = (
    *("logprobs", "old_logprobs", "proximal_logprobs", "reference_logprobs", "advantages", "entropy"),
    *("loss_mask", "cu_seqlens", "weights", "kl_ctl"),
)
"""What a loss of the user's is given, by these names, as far as it asks for it."""


@dataclass(frozen=True)
class Signature:
    """The arguments that a function or class takes, and those of them that it must be given; `open` if it takes any."""

    names: frozenset[str]
    open: bool
    required: frozenset[str] = frozenset()


def split_name(name: str) -> tuple[str, str]:
    """Where a thing of the user's is, and how it is called there; the place is empty where none is said."""
    place, _, thing = name.rpartition(":" if ":" in name or name.endswith(".py") else ".")
    return place, thing


def is_built_in(name: str) -> bool:
    return ":" not in name and "." not in name


def user_code_problems(values: dict[str, Any], folder: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with what is named, as (keys, message); `folder` is that of the experiment's file."""
    reward = values.get("reward")
    rewards = isinstance(reward, dict) and reward.get("name") is None
    for section in ("task", "workflow", "reward"):
        said = values.get(section)
        if isinstance(said, dict) and isinstance(said.get("name"), str):
            yield from _named(section, f"{section}.name", said["name"], said.get("args") or {}, folder, rewards)
    actor = values.get("actor")
    if isinstance(actor, dict) and isinstance(actor.get("loss"), str):
        yield from _named("actor.loss", "actor.loss", actor["loss"], actor.get("loss_args") or {}, folder)


def _named(
    kind: str, key: str, name: str, arguments: dict[str, Any], folder: Path, rewards: bool = False
) -> Iterator[tuple[tuple[str, ...], str]]:
    known = BUILT_IN[kind]
    if is_built_in(name):
        if name not in known:
            guess = nearest(name, list(known))
            hint = f"; did you mean {guess[0]}?" if guess else ""
            whole = "; whole algorithms are chosen by algorithm=NAME" if kind == "actor.loss" else ""
            yield (
                (key,),
                (
                    f"{name!r} is not built in{hint or '.'} There are: {', '.join(known)}; "
                    f"your own is named as pkg.module:thing or file.py:thing{whole}"
                ),
            )
            return
        yield from _arguments(kind, key, name, arguments, Signature(known[name], open=False))
        return
    place, thing = split_name(name)
    if not thing.isidentifier() or not place:
        yield (key,), f"{name!r} names nothing; write pkg.module:thing or file.py:thing"
        return
    source = find_source(place, folder)
    if source is None:
        if place.endswith(".py"):
            yield (key,), f"there is no file {place} (looked beside the experiment's file and in the working directory)"
        elif kind == "actor.loss" and _is_missing(place, folder):
            yield (
                (key,),
                f"there is no module {place} (looked beside the experiment's file, in the working directory, and "
                "among what is installed); a file is named as file.py:thing",
            )
        return
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        why = f" (line {error.lineno}): {error.msg}" if isinstance(error, SyntaxError) else f": {error}"
        yield (key,), f"{source} cannot be read as Python: {error.__class__.__name__}{why}"
        return
    names, definition = _look_up(tree, thing)
    wanted = "a function" if kind in ("reward", "actor.loss") else "a class"
    if definition is None:
        if thing in names and (plain := _plain_value(tree, thing)) is not None:
            yield (key,), f"{name} is {plain}, not {wanted}"
        elif thing not in names and "*" not in names:
            guess = nearest(thing, sorted(names))
            yield (key,), f"{source} has no {thing}" + (f"; did you mean {guess[0]}?" if guess else "")
        return
    if kind == "actor.loss" and isinstance(definition, ast.ClassDef):
        yield (key,), f"{name} is a class, not {wanted}"
        return
    signature = _signature(definition)
    if signature is not None:
        yield from _arguments(kind, key, name, arguments, signature)
        if kind == "actor.loss":
            yield from _inputs(name, arguments, signature)
    if kind != "actor.loss":
        yield from (((key,), misfit) for misfit in method_problems(kind, name, definition, rewards))


def _arguments(
    kind: str, key: str, name: str, arguments: dict[str, Any], signature: Signature
) -> Iterator[tuple[tuple[str, ...], str]]:
    if signature.open:
        return
    known = sorted(signature.names - set(LOSS_INPUTS) if kind == "actor.loss" else signature.names)
    for argument in arguments:
        if argument not in signature.names:
            guess = nearest(argument, known)
            hint = f"; did you mean {guess[0]}?" if guess else ""
            takes = f" It takes: {', '.join(known)}." if known else " It takes none."
            args = "actor.loss_args" if kind == "actor.loss" else f"{kind}.args"
            yield (f"{args}.{argument}", key), f"{name} takes no such argument{hint or '.'}{takes}"


def _inputs(name: str, arguments: dict[str, Any], signature: Signature) -> Iterator[tuple[tuple[str, ...], str]]:
    """Of a loss: what it is given by the trainer is not said twice, and all else that it wants is said."""
    for argument in arguments:
        if argument in LOSS_INPUTS:
            yield (f"actor.loss_args.{argument}",), "is what the trainer gives a loss; leave it out"
    if missing := sorted(signature.required - set(LOSS_INPUTS) - set(arguments)):
        wants = f"{name} wants {', '.join(missing)}, and a loss is given {', '.join(LOSS_INPUTS)}, each by this name"
        yield (
            ("actor.loss", "actor.loss_args"),
            f"{wants}; call what is meant by one of them so, and give a number of your own a default, or a value in "
            "actor.loss_args",
        )


def find_source(place: str, folder: Path) -> Path | None:
    """The file of a module or of a `.py` path, found without importing anything."""
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


def _is_missing(place: str, folder: Path) -> bool:
    """Whether this machine has no such module, of whatever kind. Nothing is imported."""
    top, *below = place.split(".")
    try:
        spec = PathFinder.find_spec(top, [str(folder), str(Path.cwd())]) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    for part in below:
        if spec is None:
            return True
        if spec.submodule_search_locations is None:  # a plain module may have made others, as os has os.path
            return False
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec is None


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
LITERAL = ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.JoinedStr


def _look_up(tree: ast.Module, thing: str) -> tuple[set[str], Definition | None]:
    """The names at the top of a module, and the definition of one of them, where there is one alone."""
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
    """The statements of a module, and those below an `if`, a `try` or a `with`: not those of functions and classes."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _top(node.body)
            yield from _top(getattr(node, "orelse", []))
            yield from _top(getattr(node, "finalbody", []))
            for handler in getattr(node, "handlers", []):
                yield from _top(handler.body)


def _plain_value(tree: ast.Module, thing: str) -> str | None:
    """What a name stands for, where it is only ever bound to a literal such as 3 or [1, 2]."""
    values: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values += [node.value for target in targets if isinstance(target, ast.Name) and target.id == thing]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound = ((alias.asname or alias.name).split(".")[0] for alias in node.names)
            values += [None for name in bound if name in (thing, "*")]  # it, or who knows what
        elif isinstance(node, ast.Global) and thing in node.names:
            values.append(None)
    literals = [value for value in values if isinstance(value, LITERAL)]
    return f"{ast.unparse(literals[-1]):.40}" if literals and len(literals) == len(values) else None


def _branches(tree: ast.Module) -> bool:
    """Whether names may be bound below an `if` or a `try` at the top."""
    return any(isinstance(node, ast.If | ast.Try | ast.With) for node in tree.body)


def _signature(definition: Definition) -> Signature | None:
    """None where the source alone does not tell (a decorator, a base class)."""
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
    return Signature(frozenset(names), open=arguments.kwarg is not None, required=frozenset(required))
