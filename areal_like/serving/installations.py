"""Where vLLM and SGLang are installed: each in an environment of its own, named by its Python."""

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
"""Stands in an environment that was made to its end."""
SUPPORTED = {"vllm": ((0, 32), (0, 33)), "sglang": ((0, 5, 21), (0, 5, 22))}
"""Versions from the first on and before the second: those whose flags and routes were tried."""
DISTRIBUTION = re.compile(r"(?P<name>vllm|vllm_cpu|sglang)-(?P<version>[^-]+)\.dist-info")


class Installation(NamedTuple):
    """`where` says what led to it."""

    python: str
    version: str
    where: str


def find_installation(engine: str, said: str | None, cwd: Path, on_gpu: bool = False) -> Installation:
    """The first that there is of: what the configuration says, what the environment variable says, what `make` made,
    and the environment of this program. Raises ValueError with the way to get one. Looks at names of files only."""
    for named, where in ((said, f"{engine}.python"), (os.environ.get(VARIABLES[engine]), VARIABLES[engine])):
        if named:
            python = Path(os.path.abspath(cwd / Path(named).expanduser()))
            if not os.access(python, os.X_OK) or python.is_dir():
                raise ValueError(f"{where} says {named}, which is no Python; name the bin/python of an environment")
            if (version := installed_version(python, engine)) is None:
                raise ValueError(f"{where} says {named}, and there is no {TITLES[engine]} in that environment")
            return Installation(str(python), version, where)
    for folder, where in prepared_environments(engine, on_gpu):
        version = installed_version(folder / "bin" / "python", engine)
        if version is not None and (folder / COMPLETE).is_file():
            return Installation(str(folder / "bin" / "python"), version, where)
    if (version := installed_version(Path(sys.executable), engine)) is not None:
        return Installation(sys.executable, version, "beside this program")
    by_name = f"by {engine}.python or {VARIABLES[engine]}"
    if on_gpu:
        for_cpus = next(
            (folder for folder, _ in prepared_environments(engine, False) if (folder / COMPLETE).is_file()), None
        )
        other = f" (the one in {for_cpus} is for CPUs)" if for_cpus else ""
        raise ValueError(
            f"no {TITLES[engine]} for GPUs was found{other}; install {engine}{version_range(engine)} in an environment "
            f"and name its Python {by_name}"
        )
    raise ValueError(
        f"no {TITLES[engine]} was found: `make {engine}-cpu` makes an environment with it for a machine without a "
        f"GPU; or name the Python of one {by_name}"
    )


def prepared_environments(engine: str, on_gpu: bool) -> Iterator[tuple[Path, str]]:
    """The environments that `make` makes; one for GPUs, if somebody made it there, first where there are GPUs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get(FOLDER) or cache / "areal-like" / "engines")
    if on_gpu:
        yield folder / engine, str(folder / engine)
    else:
        yield folder / f"{engine}-cpu", f"make {engine}-cpu"


def installed_version(python: Path, engine: str) -> str | None:
    """The version of the engine in the environment of this Python; None where it is not installed."""
    for packages in sorted(python.parent.parent.glob("lib*/python3*/*-packages")):
        for entry in os.listdir(packages):
            found = DISTRIBUTION.fullmatch(entry)
            if found and found["name"].removesuffix("_cpu") == engine:
                return found["version"]
    return None


def unsupported_version(engine: str, version: str) -> str | None:
    """Why this version is not one that we know; None where it is."""
    first, beyond = SUPPORTED[engine]
    if first <= tuple(int(number) for number in re.findall(r"\d+", version)[: len(beyond)]) < beyond:
        return None
    return f"{TITLES[engine]} {version} is not supported; install one that is: {version_range(engine)}"


def version_range(engine: str) -> str:
    """The range of versions, as pip would be told."""
    first, beyond = (".".join(map(str, edge)) for edge in SUPPORTED[engine])
    return f">={first},<{beyond}"
