"""Environments of verifiers that are not installed in the Python that they need."""

import importlib.util
import json
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.config.verifiers import FAMILY, EnvironmentPackage, package_of
from launcher.checks.rewards import own_tasks
from launcher.plan.host import HostInfo

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

PROBE_LIMIT_S = 60.0
PROBE = """
import importlib.util, json, sys
names, sys.path[:] = sys.argv[1:3], [*sys.path, *sys.argv[3:]]
print(json.dumps([name for name in names if importlib.util.find_spec(name) is None]))
"""


def missing_environments(loaded: "Loaded", here: HostInfo) -> Iterator[Problem]:
    if not isinstance(loaded.config, GRPOConfig):
        return
    for key, task in own_tasks(loaded.config):
        package = package_of(task.name)
        if package is None:
            continue
        python = task.args["python"]
        place = key.removesuffix(".id")
        folders = (str(loaded.folder), str(Path.cwd()))
        try:
            missing = _missing_here(package, folders) if python is None else _missing_in(package, python, folders)
        except (OSError, subprocess.SubprocessError, ValueError) as fault:
            yield Problem(f"{place}.python", f"{python} is not a Python that can be used: {fault}"[:400])
            continue
        if package.module in missing:
            where = "the environment of the run" if python is None else f"the environment of {python}"
            needs = f"{package.name} is not installed in {where}"
            yield Problem(f"{place}.id", f"{needs}; `{package.install_command(python)}` installs it")
        elif FAMILY in missing:
            needs = f"{package.name} needs the package {FAMILY}"
            remedy = f"name the Python of an environment that has both in {place}.python"
            yield Problem(f"{place}.id", f"{needs}, which is not installed beside it; {remedy}")


def _missing_here(package: EnvironmentPackage, folders: Sequence[str]) -> list[str]:
    def is_found(name: str) -> bool:
        beside = any((Path(folder) / place).is_file() for folder in folders for place in _files(name))
        return beside or importlib.util.find_spec(name) is not None

    return [name for name in (package.module, FAMILY) if not is_found(name)]


def _files(module: str) -> tuple[str, str]:
    return f"{module}.py", f"{module}/__init__.py"


@cache
def _missing_in(package: EnvironmentPackage, python: str, folders: tuple[str, ...]) -> list[str]:
    path = Path.cwd() / Path(python).expanduser()
    command = [str(path), "-E", "-c", PROBE, package.module, FAMILY, *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=True)
    return list(json.loads(done.stdout))
