"""What the workflow `agent` runs: a command or a function, which is parsed and never imported."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal_like.config.checks.user_code import find_source, split_name
from areal_like.config.checks.values import command_words, list_of_words
from areal_like.config.dotted_path import value_at
from areal_like.config.environments import LIST
from areal_like.config.problems import Problem
from areal_like.config.suggest import nearest
from areal_like.config.verifiers import package_task

AGENT = "agent"
GIVEN = ("row", "base_url", "api_key", "client")
"""What a function may have parameters for."""

FORM = "agent.command=[python,agent.py] runs a program, agent.function=file.py:thing a function"
SEARCHED = "beside the experiment's file and in the working directory"


def agent_problems(values: dict[str, Any], folder: Path) -> Iterator[Problem]:
    """`folder` is that of the experiment's file."""
    agent = values.get("agent")
    if AGENT not in _workflows(values) or not isinstance(agent, dict):
        return
    command, function = agent.get("command"), agent.get("function")
    if not command and function is None:
        yield Problem("agent.command", f"is empty, and the workflow agent has nothing to run; {FORM}")
    if command and function is not None:
        yield Problem("agent.function", "is set beside agent.command; keep one of them", also=("agent.command",))
    elif isinstance(function, str):
        yield from _function_problems(function, folder)
    if isinstance(command, list) and len(command) == 1 and _is_whole_command(str(command[0])):
        message = f"{command[0]!r} is one word, the name of a program; write {list_of_words(command[0])}"
        yield Problem("agent.command", message)
    script = command[1] if isinstance(command, list) and len(command) > 1 else ""
    if script.endswith(".py") and find_source(script, folder) is None:
        yield Problem("agent.command", f"there is no file {script} (searched {SEARCHED})")
    for key in ("call_start", "call_end"):
        if agent.get(key) == "":
            yield Problem(f"agent.{key}", "is empty; a call of a tool stands between two marks")


def _is_whole_command(word: str) -> bool:
    """A program with its arguments, and no path with spaces."""
    return len(command_words(word)) > 1 and not Path(word).expanduser().is_file()


def runs_agents(config: Any) -> bool:
    """Also for one of several environments."""
    trained = config.environments.train or []
    return AGENT in (config.workflow.name, *(each.workflow.name for each in trained))


def plays_verifiers(config: Any) -> bool:
    """Environments of verifiers, in training or in a benchmark."""
    named = [*config.environments.train, *config.evaluator.benchmarks]
    return any(each.id is not None and package_task(each.id) is not None for each in named)


def _workflows(values: dict[str, Any]) -> list[Any]:
    return [value_at(each, "workflow.name") for each in (values, *(value_at(values, LIST) or ()))]


def _function_problems(name: str, folder: Path) -> Iterator[Problem]:
    place, thing = split_name(name)
    if not place or not thing.isidentifier():
        yield Problem("agent.function", f"{name!r} is not a valid name; write pkg.module:thing or file.py:thing")
        return
    source = find_source(place, folder)
    if source is None:
        if place.endswith(".py"):
            yield Problem("agent.function", f"there is no file {place} (searched {SEARCHED})")
        return
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        yield Problem("agent.function", f"{source} cannot be read as Python: {error}")
        return
    definitions = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == thing and not node.decorator_list
    ]
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if not definitions and thing not in _bound(tree):
        guess = nearest(thing, sorted(names))
        yield Problem("agent.function", f"{source} has no {thing}" + (f"; did you mean {guess[0]}?" if guess else ""))
    for definition in definitions[-1:]:
        takes = definition.args
        given = [each.arg for each in (*takes.posonlyargs, *takes.args)]
        needed = given[: len(given) - len(takes.defaults)]
        needed += [each.arg for each, default in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if not default]
        if unknown := [each for each in needed if each not in GIVEN]:
            gets = f"but a function gets {', '.join(GIVEN)}, by these names"
            yield Problem("agent.function", f"{name} needs {', '.join(unknown)}, {gets}")


def _bound(tree: ast.Module) -> set[str]:
    """Every name that the module may have, however it gets it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
    return found
