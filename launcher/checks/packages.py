"""Checks that the packages that a run imports are installed, without importing them."""

from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from areal_like.config.built_in import PACKAGES
from areal_like.config.experiment import GRPOConfig
from areal_like.config.install_command import pip_command
from areal_like.config.problems import Problem
from areal_like.config.sections.reward import configured_rewards

REQUIRED_PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "numpy", "aiohttp", "orjson", "xxhash")


def missing_packages() -> tuple[str, ...]:
    return tuple(name for name in REQUIRED_PACKAGES if find_spec(name) is None)


def reward_packages() -> tuple[str, ...]:
    """All modules that built-in rewards need further packages for."""
    return tuple(module for module, _ in PACKAGES["reward"].values())


def missing_reward_packages(config: Any, packages: Collection[str]) -> Iterator[Problem]:
    """`packages` are installed."""
    if not isinstance(config, GRPOConfig):
        return
    for reward in configured_rewards(config.reward):
        module, package = PACKAGES["reward"].get(reward.name, ("", ""))
        if module and module not in packages:
            needs = f"{reward.name} needs the package {package}, which is not installed"
            yield Problem(f"{reward.section}.name", f"{needs}; {pip_command(package)} installs it")


def package_problems(missing: Sequence[str]) -> list[Problem]:
    if not missing:
        return []
    are = "is" if len(missing) == 1 else "are"
    reason = f"{', '.join(missing)} {are} not installed; {pip_command(*missing)} installs what a run needs"
    return [Problem("environment", reason)]
