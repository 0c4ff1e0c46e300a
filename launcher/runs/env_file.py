"""Reads `launcher.env_file`: environment variables for all processes, such as API keys. Secrets of the configuration
that all processes need travel in the same way."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.problems import ConfigError, Problem
from areal_like.discovery.etcd_client import PASSWORD

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)")


def secret_variables(config: "BaseExperimentConfig", folder: Path) -> dict[str, str]:
    """Variables for all processes of a run, none of which may be written: those of the files, and the password of etcd,
    which `config.yaml` does not hold."""
    password = config.cluster.name_resolve.etcd3_password
    return {**read_env_files(config.launcher.env_file, folder), **({PASSWORD: password} if password else {})}


def run_environment(config: "BaseExperimentConfig", folder: Path) -> dict[str, str]:
    """The environment of the run's processes: the launcher's own, overridden by the files."""
    try:
        return {**os.environ, **read_env_files(config.launcher.env_file, folder)}
    except ConfigError:
        return dict(os.environ)  # errors in the files are reported elsewhere


def read_env_files(files: Sequence[str], folder: Path) -> dict[str, str]:
    """Lines `NAME=value`, with or without quotes and `export`; a later file wins. Raises ConfigError with every invalid
    line (not its text, which may be a secret) and every unreadable file."""
    variables: dict[str, str] = {}
    problems = []
    for name in files:
        try:
            content = (folder / Path(name).expanduser()).read_text(encoding="utf-8")
        except OSError as error:
            problems.append(Problem("launcher.env_file", f"{name} cannot be read: {error.strerror}"))
            continue
        except UnicodeDecodeError:
            problems.append(Problem("launcher.env_file", f"{name} is not UTF-8 text; name a file of lines NAME=value"))
            continue
        for number, text in enumerate(content.splitlines(), 1):
            line = text.strip()
            if not line or line.startswith("#"):
                continue
            match = LINE.fullmatch(line)
            if match is None:
                problems.append(
                    Problem("launcher.env_file", "is not of the form NAME=value; correct it", f"{name}:{number}")
                )
                continue
            variables[match["name"]] = _unquoted(match["value"])
    if problems:
        raise ConfigError(problems)
    return variables


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()
