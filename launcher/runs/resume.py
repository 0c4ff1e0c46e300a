"""`resume=RUN` without `--config`: the run's own configuration, from where it was started, overrides on top."""

import os
import re
from dataclasses import replace
from pathlib import Path

from areal_like.process.run import CONFIG
from launcher.arguments import Arguments
from launcher.runs.dependent_overrides import dependent_overrides
from launcher.runs.named_run import ROOT_OVERRIDES, find_run, last_value
from launcher.runs.resumable import run_config_values
from launcher.runs.run_files import read_facts

PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z/][\w./-]*(?::[\w./-]+)*", re.ASCII | re.IGNORECASE)


def resume_arguments(arguments: Arguments) -> Arguments:
    """The same arguments with the run's own configuration as --config. Changes to the directory in which the run was
    started: paths in its configuration are relative to it."""
    overrides = arguments.overrides
    name = (last_value(overrides, "resume=") or "").strip("'\"")
    path = find_run(name, overrides, "resume")
    facts = read_facts(path)
    cwd = Path(facts.get("cwd", "."))
    if cwd.is_dir():
        os.chdir(cwd)
    others = [override for override in overrides if not override.startswith(("resume=", *ROOT_OVERRIDES))]
    schema = arguments.schema if arguments.schema is not None else facts.get("schema")
    others += dependent_overrides(run_config_values(path), facts.get("follows", {}), others)
    others += allocation_override(others)
    override = f"resume={override_value(str(path))}"
    return replace(arguments, config=str(path / CONFIG), schema=schema, overrides=[*others, override])


def allocation_override(overrides: list[str]) -> list[str]:
    """A run's configuration holds both `allocation_mode` and a backend per role; where an override changes a backend,
    the allocation is made again."""
    names = [override.partition("=")[0] for override in overrides]
    changed = any(name.endswith(".backend") for name in names)
    return ["allocation_mode=auto"] if changed and "allocation_mode" not in names else []


def override_value(path: str) -> str:
    """As the value of an override: quoted where it would not be read as this text."""
    if PLAIN.fullmatch(path):
        return path
    from launcher.sweep.hydra_session import quoted

    return quoted(path)
