"""Checks a tracker's requirements without importing it: a package, and an API key if it sends to a service."""

import netrc
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from areal_like.config.install_command import pip_command
from areal_like.config.problems import Problem
from areal_like.config.sections.trackers import TRACKERS, StatsLoggerConfig, is_enabled

WANDB_HOST = "https://api.wandb.ai"
SWANLAB_LOGIN = ".swanlab/.netrc"
"""File with the key of an earlier login: in the home directory or the current folder."""
DASHBOARD = "swanboard"
"""Package that shows SwanLab's local files."""


def tracker_packages() -> tuple[str, ...]:
    """All packages that trackers need."""
    return (*(kind.package for kind in TRACKERS.values() if kind.package is not None), DASHBOARD)


def is_installed(package: str) -> bool:
    """Whether a package can be imported. A folder without code does not count, such as the `wandb` of earlier runs."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def off_switch(name: str) -> tuple[str, str]:
    """The key that enables a tracker, and the value that disables it."""
    if TRACKERS[name].is_remote:
        return f"stats_logger.{name}.mode", "disabled"
    return f"stats_logger.{name}.path", "null"


def missing_requirements(
    config: StatsLoggerConfig, packages: Collection[str], variables: Mapping[str, str]
) -> Iterator[tuple[str, Problem]]:
    """Each tracker that lacks something, and what. `packages` are installed, `variables` in the environment."""
    for name, kind in TRACKERS.items():
        if not is_enabled(name, config):
            continue
        key, off = off_switch(name)
        if kind.package is not None and kind.package not in packages:
            reason = (
                f"needs the package {kind.package}, which is not installed; {pip_command(kind.package)} installs it"
            )
            yield name, Problem(key, f"{reason}, {key}={off} disables the tracker")
        elif name == "swanlab" and config.swanlab.mode == "local" and DASHBOARD not in packages:
            reason = (
                f"local needs the package {DASHBOARD}, which is not installed and requires an older version of rich"
            )
            yield name, Problem(key, f"{reason}; {key}=offline writes files for swanlab sync")
        elif not _has_credentials(name, config, variables):
            mode = getattr(config, name).mode
            reason = f"{mode} needs an API key; set {name.upper()}_API_KEY in the environment or in launcher.env_file"
            local = "offline" if "offline" in kind.choices["mode"] else off
            yield name, Problem(key, f"{reason}, or set {key}={local}")


def _has_credentials(name: str, config: StatsLoggerConfig, variables: Mapping[str, str]) -> bool:
    """Without credentials the package would prompt for a key on the terminal, inside the progress display."""
    kind, section = TRACKERS[name], getattr(config, name)
    if not kind.online or section.mode not in kind.online:
        return True
    if getattr(section, kind.api_key) or variables.get(f"{name.upper()}_API_KEY"):
        return True
    return name in LOGINS and LOGINS[name](section, variables)


def _logged_in_to_wandb(section: Any, variables: Mapping[str, str]) -> bool:
    if variables.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    return _in_netrc(section.wandb_base_url or variables.get("WANDB_BASE_URL") or WANDB_HOST, variables)


def _logged_in_to_swanlab(section: Any, variables: Mapping[str, str]) -> bool:
    root = variables.get("SWANLAB_ROOT") or variables.get("SWANLAB_SAVE_DIR")
    files = (Path.cwd() / SWANLAB_LOGIN, Path(root) / ".netrc" if root else Path.home() / SWANLAB_LOGIN)
    return any(file.is_file() for file in files)


def _in_netrc(url: str, variables: Mapping[str, str]) -> bool:
    """Whether the host has an entry in .netrc, where `wandb login` writes the key."""
    named = variables.get("NETRC")
    files = [Path(named).expanduser()] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]
    file = next((each for each in files if each.is_file()), None)
    if file is None:
        return False
    try:
        return netrc.netrc(file).authenticators(urlsplit(url).netloc) is not None
    except (OSError, netrc.NetrcParseError):
        return False  # the package cannot read it either


LOGINS = {"wandb": _logged_in_to_wandb, "swanlab": _logged_in_to_swanlab}
"""Whether a tracker has credentials outside of the run: for those that keep them in a file."""
