"""`resume=RUN` without `--config`: the run's own configuration, from where it was started, overrides on top."""

import os
import re
from dataclasses import replace
from pathlib import Path

import yaml

from areal_like.config.problems import ConfigError, Problem
from areal_like.process.run import CONFIG
from launcher.arguments import Arguments
from launcher.runs.dependent_overrides import dependent_overrides
from launcher.runs.registry import ambiguity_text, find_runs
from launcher.runs.run_files import read_facts

ROOT_OVERRIDES, DEFAULT_ROOT = ("cluster.fileroot=", "fileroot="), "runs"


def resume_arguments(arguments: Arguments) -> Arguments:
    """The same with the run's file as --config; changes to the directory that its command was given in, as the paths in
    its configuration are meant from there."""
    words = arguments.overrides
    name = next(word for word in reversed(words) if word.startswith("resume=")).removeprefix("resume=").strip("'\"")
    path = find_run(name, words, "resume")
    said = read_facts(path)
    cwd = Path(said.get("cwd", "."))
    if cwd.is_dir():
        os.chdir(cwd)
    others = [word for word in words if not word.startswith(("resume=", *ROOT_OVERRIDES))]
    schema = arguments.schema if arguments.schema is not None else said.get("schema")
    values = yaml.safe_load((path / CONFIG).read_text(encoding="utf-8"))
    others += dependent_overrides(values, said.get("follows", {}), others)
    others += allocation_override(others)
    word = f"resume={_as_an_override(str(path))}"
    return replace(arguments, config=str(path / CONFIG), schema=schema, overrides=[*others, word])


def allocation_override(words: list[str]) -> list[str]:
    """The run's configuration says twice what runs on how many devices, in `allocation_mode` and for each role: where a
    role is told anew, the rest follows."""
    names = [word.partition("=")[0] for word in words]
    told = any(name.endswith(".backend") for name in names)
    return ["allocation_mode=auto"] if told and "allocation_mode" not in names else []


def _as_an_override(path: str) -> str:
    """Quoted where Hydra would read something else."""
    if re.fullmatch(r"[\w./-]+", path, re.ASCII):
        return path
    return "'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'"


def find_run(name: str, words: list[str], key: str) -> Path:
    """Looked up below `cluster.fileroot` where the words name one, and among all that this user has started; `key` is
    what a complaint begins with."""
    named = next(
        (word.partition("=")[2].strip("'\"") for word in reversed(words) if word.startswith(ROOT_OVERRIDES)), None
    )
    root = Path(os.path.abspath(Path(named or DEFAULT_ROOT).expanduser()))
    found = find_runs(name, root, Path.cwd())
    if len(found) != 1:
        raise ConfigError([Problem(key, ambiguity_text(name, found, root), "command line")])
    return found[0]
