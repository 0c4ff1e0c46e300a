"""Packages of text environments that are not installed, and puzzles that reasoning-gym does not have."""

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.config.environments import PLAYED, REASONING_GYM, TEXT_ENVIRONMENT
from areal_like.config.experiment import GRPOConfig
from areal_like.config.install_command import pip_command
from areal_like.config.problems import Problem
from areal_like.config.suggest import nearest
from launcher.checks.rewards import own_tasks
from launcher.plan.host import HostInfo

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

PACKAGES = {"gymnasium": "gymnasium", "openenv": "openenv-core", "textarena": "textarena"}
"""Module of a family of text environments -> its package on PyPI."""
PROBE_LIMIT_S = 5.0
PROBE = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None and 3)"
LACKS_IT = 3
PUZZLE = re.compile(r"""^(?:DATASET_NAME\s*=\s*|register_dataset\(\s*)["'](\w+)["']""", re.MULTILINE)


def missing_environment_packages(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    for key, name, family, python in _played(config):
        try:
            lacks_it = find_spec(family) is None if python is None else _lacks(python, family)
        except (OSError, subprocess.SubprocessError) as fault:
            yield Problem("workflow.args.python", f"{python} is not a Python that can be used: {fault}"[:400])
            continue
        if lacks_it:
            package = PACKAGES[family]
            install = pip_command(package) if python is None else f"{python} -m pip install {package}"
            where = "the environment of the run" if python is None else f"the environment of {python}"
            needs = f"{name} needs the package {package}, which is not installed in {where}"
            yield Problem(key, f"{needs}; `{install}` installs it")


def unanswered_pythons(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    """Whether they have the package is then seen at the start."""
    late = set[str]()
    for _, _, family, python in _played(config):
        if python is not None and python not in late and _is_late(python, family):
            late.add(python)
            message = f"{python} did not say within {PROBE_LIMIT_S:g} s whether it has {PACKAGES[family]}"
            yield Problem("workflow.args.python", message)


def unknown_puzzles(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    """Nothing where reasoning-gym is not installed."""
    task = getattr(config, "task", None)
    named = [("task.args.dataset", task)] if task is not None and task.name is not None else []
    for key, each in (*named, *own_tasks(config)):
        puzzle = each.args.get("dataset")
        if each.name != REASONING_GYM or not isinstance(puzzle, str) or _has_file(puzzle):
            continue
        if puzzle in puzzles() or not puzzles():
            continue
        guess = nearest(puzzle, sorted(puzzles()))
        hint = f"; did you mean {guess[0]}?" if guess else f"; there are {', '.join(sorted(puzzles()))}"
        yield Problem(key, f"reasoning-gym has no puzzle {puzzle}{hint}")


def _has_file(puzzle: str) -> bool:
    """Most puzzles have the names of their files, so that one file is read and not all of them."""
    return any(puzzle in _registered(path) for path in _files() if path.stem == puzzle)


@cache
def puzzles() -> frozenset[str]:
    """Of the installed package, read in its source: importing it takes seconds."""
    return frozenset(name for path in _files() for name in _registered(path))


@cache
def _files() -> tuple[Path, ...]:
    spec = find_spec(REASONING_GYM)
    return () if spec is None or spec.origin is None else tuple(Path(spec.origin).parent.rglob("*.py"))


def _registered(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return PUZZLE.findall(text) if "register_dataset(" in text else []


def _played(config: "BaseExperimentConfig") -> Iterator[tuple[str, str, str, str | None]]:
    """Key, name, family and Python of each text environment that a package plays."""
    if not isinstance(config, GRPOConfig):
        return
    for key, task in own_tasks(config):
        name = str(task.args.get("name"))
        family = name.partition(":")[0]
        if task.name == TEXT_ENVIRONMENT and family in PLAYED:
            yield key, name, family, _python(config, key)


def _python(config: GRPOConfig, key: str) -> str | None:
    """Of the workflow that plays it: its own, or that of the run."""
    place, _, index = key.removesuffix(".id").rpartition(".")
    own: Any = config.environments.train[int(index)].workflow if place == "environments.train" else None
    workflow = own if own is not None and own.name is not None else config.workflow
    python = workflow.args.get("python")
    return None if python in (None, sys.executable) else str(python)


def _is_late(python: str, module: str) -> bool:
    try:
        return _lacks(python, module) is None
    except (OSError, subprocess.SubprocessError):
        return False


@cache
def _lacks(python: str, module: str) -> bool | None:
    """None where it does not answer in time."""
    path = Path.cwd() / Path(python).expanduser() if "/" in python else Path(python)
    command = [str(path), "-E", "-c", PROBE, module]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_LIMIT_S)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode not in (0, LACKS_IT):
        done.check_returncode()
    return done.returncode == LACKS_IT
