"""Imports user code by name, `pkg.module:thing` (or `pkg.module.thing`) or `file.py:thing`, and creates objects with
arguments.

Every error is a ConfigError with the key, and with file and line of the user's code.
"""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import xxhash

from areal_like.config.built_in import BUILT_IN
from areal_like.config.checks.user_code import is_built_in, split_name
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.suggest import nearest

__all__ = [
    "SearchFolders",
    "check_arguments",
    "check_call",
    "config_error",
    "describe_error",
    "is_built_in",
    "load_built_in",
    "load_named",
    "load_object",
    "make_object",
]


class SearchFolders(NamedTuple):
    """Where names are searched: beside the experiment's file, then in the working directory of the command."""

    folder: Path
    cwd: Path


def config_error(key: str, message: str, cause: BaseException | None = None) -> ConfigError:
    """The error of one key; `cause` is logged in full."""
    error = ConfigError([Problem(key, message)])
    error.__cause__ = cause
    return error


def load_named(kind: str, key: str, name: str, places: SearchFolders) -> Any:
    """Imports a task, workflow, reward or loss, built in or the user's."""
    return load_built_in(kind, key, name) if is_built_in(name) else load_object(key, name, places)


def load_built_in(kind: str, key: str, name: str) -> Any:
    """Imports what a built-in name stands for."""
    built_in = BUILT_IN[kind]
    if name not in built_in:
        guess = nearest(name, list(built_in))
        hint = f"; did you mean {guess[0]}?" if guess else "."
        raise config_error(key, f"{name!r} is not built in{hint} There are: {', '.join(built_in)}")
    module, thing = split_name(built_in[name])
    return getattr(importlib.import_module(module), thing)


def load_object(key: str, name: str, places: SearchFolders) -> Any:
    """Imports the object that `name` refers to."""
    place, thing = split_name(name)
    if not place or not thing.isidentifier():
        raise config_error(key, f"{name!r} is not a valid name; write pkg.module:thing or file.py:thing")
    module = _file(key, place, places) if place.endswith(".py") else _module(key, place, places)
    if not hasattr(module, thing):
        guess = nearest(thing, [known for known in vars(module) if not known.startswith("_")])
        raise config_error(key, f"{module.__file__} has no {thing}" + (f"; did you mean {guess[0]}?" if guess else ""))
    return getattr(module, thing)


def make_object(key: str, args_key: str, name: str, thing: Any, args: dict[str, Any]) -> Any:
    """`thing(**args)`, with the arguments checked first to distinguish a wrong one from an error inside."""
    if not callable(thing):
        raise config_error(key, f"{name} is {type(thing).__name__}, not a class")
    check_arguments(args_key, name, thing, args)
    try:
        return thing(**args)
    except ConfigError:
        raise
    except BaseException as fault:
        if isinstance(fault, KeyboardInterrupt):
            raise
        raise config_error(
            key, f"{name} could not be created: {describe_error(fault, _source(thing))}", fault
        ) from fault


def check_arguments(key: str, name: str, thing: Any, args: dict[str, Any]) -> None:
    """Raises if `thing(**args)` would not fit its signature."""
    try:
        inspect.signature(thing).bind(**args)
    except TypeError as misfit:
        raise config_error(key, f"{name} cannot be created with {args or 'no arguments'}: {misfit}", misfit) from misfit
    except ValueError:  # a class of a C extension may have no signature
        return


def check_call(key: str, name: str, thing: Any, method: str, *given: str) -> None:
    """Raises if `thing.method` cannot be called with the arguments that a run passes."""
    try:
        signature = inspect.signature(getattr(thing, method))
    except ValueError:  # a method of a C extension may have no signature
        return
    try:
        signature.bind(*given)
    except TypeError as misfit:
        call = f"{method}({', '.join(given)})"
        raise config_error(key, f"{method} of {name} takes {signature} and is called as {call}: {misfit}") from None


def describe_error(fault: BaseException, file: str | None = None) -> str:
    """`file line 12, in run: KeyError: 'x'`: the last frame in `file`, else the last one outside libraries."""
    if isinstance(fault, SyntaxError) and fault.filename:
        return f"{fault.filename} line {fault.lineno}: {type(fault).__name__}: {fault.msg}"
    message = f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
    frames = traceback.extract_tb(fault.__traceback__)
    user_frames = [frame for frame in frames if frame.filename == file] or [
        frame for frame in frames if is_user_file(frame.filename)
    ]
    if not user_frames:
        return message
    inside = "" if user_frames[-1].name == "<module>" else f", in {user_frames[-1].name}"
    return f"{user_frames[-1].filename} line {user_frames[-1].lineno}{inside}: {message}"


OURS, LIBRARY = str(Path(__file__).parents[1]), str(Path(traceback.__file__).parent)
"""Folders of this package and of the standard library."""


def is_user_file(path: str) -> bool:
    """Whether a stack's file is neither of this package nor of a library."""
    return not path.startswith((OURS, LIBRARY, "<")) and "site-packages" not in path


def _source(thing: Any) -> str | None:
    """The file of a user's object."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    return None if file is None or file.startswith(OURS) else file


def _file(key: str, place: str, places: SearchFolders) -> ModuleType:
    path = Path(place).expanduser()
    candidates = [path] if path.is_absolute() else [folder / path for folder in places]
    file_path = next((candidate.resolve() for candidate in candidates if candidate.is_file()), None)
    if file_path is None:
        candidate_list = ", ".join(dict.fromkeys(str(candidate) for candidate in candidates))
        raise config_error(key, f"there is no file {place} (searched: {candidate_list})")
    name = f"areal_like_user.{file_path.stem}_{xxhash.xxh3_64_hexdigest(str(file_path).encode())[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file_path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    _search_in([file_path.parent, *places])
    sys.modules[name] = module  # dataclasses look up their module while it is executed
    try:
        spec.loader.exec_module(module)
    except BaseException as fault:
        del sys.modules[name]
        if isinstance(fault, KeyboardInterrupt):
            raise
        raise config_error(
            key, f"{place} cannot be imported: {describe_error(fault, str(file_path))}", fault
        ) from fault
    return module


def _module(key: str, place: str, places: SearchFolders) -> ModuleType:
    _search_in(places)
    try:
        return importlib.import_module(place)
    except BaseException as fault:
        if isinstance(fault, KeyboardInterrupt):
            raise
        raise config_error(key, f"{place} cannot be imported: {describe_error(fault)}", fault) from fault


def _search_in(folders: Iterable[Path]) -> None:
    """The user's folders come first in sys.path, as for a script; names were checked in the same order."""
    for folder in reversed(list(folders)):
        if str(folder) not in sys.path[:4]:
            sys.path.insert(0, str(folder))
