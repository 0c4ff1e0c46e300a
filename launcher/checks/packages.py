"""Checks that the packages that a run imports are installed, without importing them."""

from collections.abc import Sequence
from importlib.util import find_spec

from areal_like.config.built_in import PACKAGES
from areal_like.config.install_command import pip_command
from areal_like.config.problems import Problem

REQUIRED_PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "numpy", "aiohttp", "orjson", "xxhash")


def missing_packages() -> tuple[str, ...]:
    return tuple(name for name in REQUIRED_PACKAGES if find_spec(name) is None)


def built_in_packages() -> tuple[str, ...]:
    """All modules that built-in tasks and rewards need further packages for."""
    return tuple(module for kind in PACKAGES.values() for module, _ in kind.values())


def package_problems(missing: Sequence[str]) -> list[Problem]:
    if not missing:
        return []
    are = "is" if len(missing) == 1 else "are"
    reason = f"{', '.join(missing)} {are} not installed; {pip_command(*missing)} installs what a run needs"
    return [Problem("environment", reason)]
