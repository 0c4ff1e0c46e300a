"""Finds the environments in which inference engines are installed, each by its Python."""

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

FOLDER = "ENGINES"
"""Environment variable with the folder of the environments that `make NAME` and `make NAME-cpu` make."""
COMPLETE = ".complete"
"""A file in every completely made environment."""


class EngineDistribution(NamedTuple):
    """The Python packages of an engine: under which names they are installed, and the supported versions, from the
    first to below the second: those whose flags and routes were tested. `make NAME` (for GPUs) and `make NAME-cpu` make
    an environment."""

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
    folder, where = prepared_environment(engine, on_gpu)
    version = installed_version(folder / "bin" / "python", engine)
    if version is not None and (folder / COMPLETE).is_file():
        return Installation(str(folder / "bin" / "python"), version, where)
    if (version := installed_version(Path(sys.executable), engine)) is not None:
        return Installation(sys.executable, version, "the environment of this program")
    kind, machine, other = "", " for a machine without a GPU", ""
    if on_gpu:
        kind, machine = "for GPUs ", ""
        for_cpus, _ = prepared_environment(engine, False)
        other = f" (the one in {for_cpus} is for CPUs)" if (for_cpus / COMPLETE).is_file() else ""
    raise ValueError(
        f"no {engine.title} {kind}was found{other}: `{where}` makes an environment with it{machine}; or give the "
        f"Python of one with {engine.name}{version_range(engine)} in {engine.key} or {engine.variable}"
    )


def prepared_environment(engine: EngineDistribution, on_gpu: bool) -> tuple[Path, str]:
    """The folder of the environment that a command makes, and that command."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get(FOLDER) or cache / "areal-like" / "engines")
    target = engine.name if on_gpu else f"{engine.name}-cpu"
    return folder / target, f"make {target}"


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
