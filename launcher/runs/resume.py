"""`resume=RUN` without `--config`: the run's own configuration, from where it was started, overrides on top."""

import os
import re
from dataclasses import replace
from pathlib import Path

from areal_like.config.problems import ConfigError, Problem
from areal_like.process.run import CONFIG
from launcher.arguments import Arguments
from launcher.runs.dependent_overrides import dependent_overrides
from launcher.runs.registry import ambiguity_text, find_runs
from launcher.runs.resumable import run_config_values
from launcher.runs.run_files import read_facts

ROOT_OVERRIDES, DEFAULT_ROOT = ("cluster.fileroot=", "fileroot="), "runs"


def resume_arguments(arguments: Arguments) -> Arguments:
    """The same arguments with the run's own configuration as --config. Changes to the directory in which the run was
    started: paths in its configuration are relative to it."""
    overrides = arguments.overrides
    name = (
        next(override for override in reversed(overrides) if override.startswith("resume="))
        .removeprefix("resume=")
        .strip("'\"")
    )
    path = find_run(name, overrides, "resume")
    facts = read_facts(path)
    cwd = Path(facts.get("cwd", "."))
    if cwd.is_dir():
        os.chdir(cwd)
    others = [override for override in overrides if not override.startswith(("resume=", *ROOT_OVERRIDES))]
    schema = arguments.schema if arguments.schema is not None else facts.get("schema")
    others += dependent_overrides(run_config_values(path), facts.get("follows", {}), others)
    others += allocation_override(others)
    override = f"resume={_as_an_override(str(path))}"
    return replace(arguments, config=str(path / CONFIG), schema=schema, overrides=[*others, override])


def allocation_override(overrides: list[str]) -> list[str]:
    """A run's configuration holds both `allocation_mode` and a backend per role; where an override changes a backend,
    the allocation is made again."""
    names = [override.partition("=")[0] for override in overrides]
    changed = any(name.endswith(".backend") for name in names)
    return ["allocation_mode=auto"] if changed and "allocation_mode" not in names else []


def _as_an_override(path: str) -> str:
    """Quoted where Hydra's syntax needs it."""
    if re.fullmatch(r"[\w./-]+", path, re.ASCII):
        return path
    return "'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'"


def find_run(name: str, overrides: list[str], key: str) -> Path:
    """Looks below `cluster.fileroot`, if an override sets it, and in the registry; an error begins with `key`."""
    root_override = next(
        (
            override.partition("=")[2].strip("'\"")
            for override in reversed(overrides)
            if override.startswith(ROOT_OVERRIDES)
        ),
        None,
    )
    root = Path(os.path.abspath(Path(root_override or DEFAULT_ROOT).expanduser()))
    matches = find_runs(name, root, Path.cwd())
    if len(matches) != 1:
        raise ConfigError([Problem(key, ambiguity_text(name, matches, root), "command line")])
    return matches[0]
