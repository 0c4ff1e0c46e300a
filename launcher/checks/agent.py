"""What the program or function of an agent needs and this machine lacks."""

import ast
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.checks.agent import runs_agents
from areal_like.config.checks.user_code import find_source, is_missing_module, split_name
from areal_like.config.experiment import GRPOConfig
from areal_like.config.install_command import pip_command
from areal_like.config.problems import Problem
from launcher.plan.host import HostInfo

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

CLIENT, CLIENT_MODULE = "client", "openai"
ON_PYPI = {"agents": "openai-agents", "anthropic": "anthropic", "openai": "openai", "pydantic_ai": "pydantic-ai-slim"}
"""Module -> package that brings it, of clients and frameworks that the docs name."""


def missing_program(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    if not isinstance(config, GRPOConfig) or not runs_agents(config) or not config.agent.command:
        return
    program = config.agent.command[0]
    if shutil.which(program) is None and shutil.which(program, path=str(Path(sys.executable).parent)) is None:
        yield Problem("agent.command", f"there is no program {program} here; name one in the PATH, or by its path")


def missing_imports(loaded: "Loaded", config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Modules that it imports before all else. An import after other code is left to the run: the code may say where
    modules are, or that it does without them."""
    if not isinstance(config, GRPOConfig) or not runs_agents(config) or config.cluster.type != "local":
        return
    key, place, thing = _python_source(config)
    source = find_source(place, loaded.folder) if place else None
    if source is None:
        return
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return  # the configuration's checks, or the program itself, say so
    imported = {f"{place} imports {module}": module for module in _first_imports(tree)}
    if _takes_client(tree, thing):
        imported[f"{thing} takes a {CLIENT}, which is made by the package {CLIENT_MODULE}"] = CLIENT_MODULE
    for needs, module in imported.items():
        if all(is_missing_module(module, folder) for folder in (source.parent, loaded.folder)):
            package = ON_PYPI.get(module)
            remedy = "install it for this Python" if package is None else f"{pip_command(package)} installs it"
            yield Problem(key, f"{needs}, which is not installed: {remedy}")


def _python_source(config: GRPOConfig) -> tuple[str, str, str]:
    """The key, the module or file that it names, and the name of the function; empty if this Python does not run it."""
    if config.agent.function is not None:
        return "agent.function", *split_name(config.agent.function)
    program, script, *_ = [*config.agent.command, "", ""]
    is_ours = program in ("python", "python3", sys.executable) and script.endswith(".py")
    return "agent.command", script if is_ours else "", ""


def _first_imports(tree: ast.Module) -> list[str]:
    found: list[str] = []
    for node in tree.body:
        match node:
            case ast.Import(names=names):
                found += [each.name for each in names]
            case ast.ImportFrom(module=str(module), level=0):
                found.append(module)
            case ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                pass
            case _:
                break
    return list(dict.fromkeys(name.partition(".")[0] for name in found))


def _takes_client(tree: ast.Module, thing: str) -> bool:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == thing:
            takes = node.args
            return CLIENT in [each.arg for each in (*takes.posonlyargs, *takes.args, *takes.kwonlyargs)]
    return False
