"""The command that installs a missing package: with constraints.txt in a checkout, with the requirements of the wheel
elsewhere."""

import os
import re
import shlex
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
DISTRIBUTION = "areal-like"
PINS = "constraints.txt"
REQUIREMENT = re.compile(r"(?P<text>(?P<name>[\w.-]+)[^;]*)")


def pip_command(*packages: str) -> str:
    """Installs into the environment of this process. `packages` are names on PyPI."""
    pins = CHECKOUT / PINS
    if pins.is_file():
        words = ["-c", _from_here(pins), *packages]
    else:
        known = _requirements()
        words = [known.get(package.lower(), package) for package in packages]
    return shlex.join([*_pip(), "install", *words])


def _pip() -> list[str]:
    """`pip` is that of the activated environment, which may be another one than that of this process."""
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if active and Path(active).resolve() == Path(sys.prefix).resolve():
        return ["pip"]
    return [_from_here(Path(sys.executable)), "-m", "pip"]


def _from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _requirements() -> dict[str, str]:
    """Name -> requirement with its versions, as the wheel states it."""
    from importlib.metadata import PackageNotFoundError, requires  # slow, and only an error needs it

    try:
        stated = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return {}
    matches = [match for match in map(REQUIREMENT.match, stated) if match is not None]
    return {match["name"].lower(): match["text"].strip() for match in matches}
