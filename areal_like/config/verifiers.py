"""Environments of the package verifiers: what their ids mean, and the command that installs one."""

import re
import shlex
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from areal_like.config.built_in import TASKS
from areal_like.config.install_command import pip_command

FAMILY = "verifiers"
HUB = "https://hub.primeintellect.ai/{owner}/simple/"
"""Where pip finds the packages of an owner."""
PACKAGE = re.compile(r"((?P<owner>[\w.-]+)/)?(?P<name>[A-Za-z0-9][\w-]*)(@(?P<version>[\w.+!-]+))?")


class EnvironmentPackage(NamedTuple):
    """`owner` and `version` are empty where the id has none."""

    owner: str
    name: str
    version: str

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    def install_command(self, python: str | None) -> str:
        version = f"=={self.version}" if self.version not in ("", "latest") else ""
        words = [f"{self.name}{version}"]
        words += ["--extra-index-url", HUB.format(owner=self.owner)] if self.owner else []
        if python is None or python == sys.executable:
            return pip_command(*words)
        return shlex.join([python, "-m", "pip", "install", *words])


def package_of(task: str) -> EnvironmentPackage | None:
    """That of a task `verifiers:owner/name@version`; None for another task, or what is no id."""
    family, _, rest = task.partition(":")
    found = PACKAGE.fullmatch(rest) if family == FAMILY else None
    return None if found is None else EnvironmentPackage(*(found[key] or "" for key in ("owner", "name", "version")))


def package_task(name: str) -> str | None:
    """The task that an id names if it is one of verifiers: `owner/name` and `name` are short for `verifiers:...`."""
    if name.partition(":")[0] == FAMILY and ":" in name:
        return name
    return f"{FAMILY}:{name}" if name not in TASKS and PACKAGE.fullmatch(name) is not None else None


def is_played_by_itself(task: str | None) -> bool:
    """Whether the rows of a task are played, and its answers scored, by an environment of verifiers."""
    return task is not None and task.partition(":")[0] == FAMILY and ":" in task


def task_arguments(args: Mapping[str, Any], python: str | None) -> dict[str, Any]:
    return {"args": dict(args), "python": python}
