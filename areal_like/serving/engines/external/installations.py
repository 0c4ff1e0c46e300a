"""Finds the environments in which inference engines are installed, each by its Python."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = "ENGINES"
"""Environment variable with the folder of the environments that `make NAME-cpu` makes."""
COMPLETE = ".complete"
"""A file in every completely made environment."""


class EngineDistribution(NamedTuple):
    """The Python packages of an engine: under which names they are installed, and the supported versions, from the
    first to below the second: those whose flags and routes were tested. `make NAME-cpu` makes an environment."""

    name: str
    title: str
    packages: tuple[str, ...]
    supported: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def variable(self) -> str:
        """The environment variable with the Python of an environment."""
        return f"AREAL_LIKE_{self.name.upper()}_PYTHON"

    @property
    def key(self) -> str:
        """The same in the configuration."""
        return f"{self.name}.python"


INSTALLED = re.compile(r"(?P<name>\w+)-(?P<version>[^-]+)\.dist-info")


class Installation(NamedTuple):
    """`where`: the key, variable or folder that named it."""

    python: str
    version: str
    where: str


def find_installation(
    engine: EngineDistribution, configured: str | None, cwd: Path, on_gpu: bool = False
) -> Installation:
    """The first of: the configured Python, the environment variable's, an environment that `make` has made, and the
    environment of this program. Raises ValueError with a remedy. Reads file names only."""
    for path, where in ((configured, engine.key), (os.environ.get(engine.variable), engine.variable)):
        if path:
            python = Path(os.path.abspath(cwd / Path(path).expanduser()))
            if not os.access(python, os.X_OK) or python.is_dir():
                raise ValueError(f"{where}: {path} is not a Python; give the bin/python of an environment")
            if (version := installed_version(python, engine)) is None:
                raise ValueError(f"{where}: {engine.title} is not installed in the environment of {path}")
            return Installation(str(python), version, where)
    for folder, where in prepared_environments(engine, on_gpu):
        version = installed_version(folder / "bin" / "python", engine)
        if version is not None and (folder / COMPLETE).is_file():
            return Installation(str(folder / "bin" / "python"), version, where)
    if (version := installed_version(Path(sys.executable), engine)) is not None:
        return Installation(sys.executable, version, "the environment of this program")
    setting = f"{engine.key} or {engine.variable}"
    if on_gpu:
        for_cpus = next(
            (folder for folder, _ in prepared_environments(engine, False) if (folder / COMPLETE).is_file()), None
        )
        other = f" (the one in {for_cpus} is for CPUs)" if for_cpus else ""
        raise ValueError(
            f"no {engine.title} for GPUs was found{other}; install {engine.name}{version_range(engine)} in an "
            f"environment and give its Python in {setting}"
        )
    raise ValueError(
        f"no {engine.title} was found: `make {engine.name}-cpu` makes an environment with it for a machine without a "
        f"GPU; or give the Python of one in {setting}"
    )


def prepared_environments(engine: EngineDistribution, on_gpu: bool) -> Iterator[tuple[Path, str]]:
    """The folders of prepared environments: for a GPU one that the user has made, for a CPU that of `make`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get(FOLDER) or cache / "areal-like" / "engines")
    if on_gpu:
        yield folder / engine.name, str(folder / engine.name)
    else:
        yield folder / f"{engine.name}-cpu", f"make {engine.name}-cpu"


def installed_version(python: Path, engine: EngineDistribution) -> str | None:
    """The version of the engine in the environment of this Python; None if it is not installed."""
    for packages in sorted(python.parent.parent.glob("lib*/python3*/*-packages")):
        for entry in os.listdir(packages):
            match = INSTALLED.fullmatch(entry)
            if match and match["name"] in engine.packages:
                return match["version"]
    return None


def unsupported_version(engine: EngineDistribution, version: str) -> str | None:
    """A message if this version is not supported; None if it is."""
    first, beyond = engine.supported
    if first <= tuple(int(number) for number in re.findall(r"\d+", version)[: len(beyond)]) < beyond:
        return None
    return f"{engine.title} {version} is not supported; install a version {version_range(engine)}"


def version_range(engine: EngineDistribution) -> str:
    """The supported versions as a pip specifier."""
    first, beyond = (".".join(map(str, edge)) for edge in engine.supported)
    return f">={first},<{beyond}"
