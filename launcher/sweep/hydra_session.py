"""Runs Hydra: reads its settings, runs its multirun, hides it from the code of a point."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from areal_like.config.install_command import pip_command
from areal_like.config.problems import ConfigError, Problem
from launcher.sweep.hydra_root import ROOT_NAME, HydraRoot, compose_next

PACKAGES = {
    "hydra/launcher/joblib": "hydra-joblib-launcher",
    "hydra/launcher/submitit_local": "hydra-submitit-launcher",
    "hydra/launcher/submitit_slurm": "hydra-submitit-launcher",
    "hydra/sweeper/optuna": "hydra-optuna-sweeper",
}
UNHELPFUL = ("To append to your config", "See https", "full_key:", "reference_type=", "object_type=")
# Hydra 1.3 needs version_base, 1.4 no longer.
VERSION_BASE: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}


@contextmanager
def outside_hydra(argv: Sequence[str] | None = None) -> Iterator[None]:
    """Hides the running Hydra instance: a point composes its own configuration inside of Hydra's job."""
    running, settings, arguments = GlobalHydra.instance().hydra, HydraConfig.instance().cfg, sys.argv
    GlobalHydra.instance().clear()
    HydraConfig.instance().cfg = None
    sys.argv = arguments if argv is None else list(argv)
    try:
        yield
    finally:
        sys.argv = arguments
        GlobalHydra.instance().hydra = running
        HydraConfig.instance().cfg = settings


@dataclass(frozen=True)
class HydraSettings:
    """The settings that Hydra will use."""

    sweeper: str
    launcher: str
    optimizing: bool
    params: Mapping[str, Any]
    options: Mapping[str, Any]
    """The sweeper's own settings."""
    directory: str
    chdir: bool


@contextmanager
def hydra_settings(root: HydraRoot, overrides: Sequence[str]) -> Iterator[tuple[HydraSettings, ConfigLoader]]:
    """Hydra's settings with these overrides, and a config loader that knows the groups."""
    if swept := [text for text in overrides if _is_sweep(text)]:
        message = "a setting of Hydra cannot be swept; quote a value that contains a comma"
        raise ConfigError(Problem(text.partition("=")[0], message, f"override {text}") for text in swept)
    compose_next(root)
    with outside_hydra(), hydra.initialize(config_path=None, job_name="sweep", **VERSION_BASE):
        try:
            composed = hydra.compose(ROOT_NAME, list(overrides), return_hydra_config=True)
            HydraConfig.instance().set_config(composed)
            settings = _settings(composed.hydra)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError([_explain(error, overrides)]) from error
        yield settings, GlobalHydra.instance().config_loader()


def _is_sweep(text: str) -> bool:
    try:
        return OverridesParser.create().parse_override(text).is_sweep_override()
    except HydraException:
        return False  # reported by the composition


def _settings(node: DictConfig) -> HydraSettings:
    choices = node.runtime.choices
    options = OmegaConf.to_container(node.sweeper, resolve=True)
    assert isinstance(options, dict)
    return HydraSettings(
        sweeper=str(choices.get("hydra/sweeper")),
        launcher=str(choices.get("hydra/launcher")),
        optimizing=not str(options.get("_target_")).endswith(".BasicSweeper"),
        params=flat(options.get("params") or {}),
        options={str(key): value for key, value in options.items()},
        directory=str(node.sweep.dir),
        chdir=bool(node.job.chdir),
    )


def flat(params: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """`{actor: {lr: x}}` as `{actor.lr: x}`: a dotted key on the command line arrives nested."""
    result: dict[str, Any] = {}
    for key, value in params.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return result


def _explain(error: Exception, overrides: Sequence[str]) -> Problem:
    """Hydra's error message, without advice that does not apply here."""
    causes = [str(one) for one in (error, error.__cause__) if one is not None]
    lines = [line.strip() for cause in causes for line in cause.partition("Config search path")[0].splitlines()]
    text = "; ".join(line for line in lines if line and not line.startswith(UNHELPFUL)).replace(":; ", ": ")
    text = text or type(error).__name__
    for option, package in PACKAGES.items():
        if f"'{option}'" in text:
            text += f"; it comes with the package {package} ({pip_command(package)})"
    key, where = "hydra", ""
    for override in overrides:
        name, _, value = override.partition("=")
        if override in text or (f"'{name.lstrip('+')}" in text and (value in text or "." in name)):
            key, where = name.lstrip("+"), f"override {override}"
    return Problem(key, text, where)


def quoted(text: str) -> str:
    """As a quoted string in Hydra's syntax."""
    return QuotedString(text, Quote.single).with_quotes()


def run_multirun(root: HydraRoot, arguments: Sequence[str], task: Callable[[DictConfig], Any]) -> int:
    """Runs the sweep in this process; returns Hydra's exit code, 1 where its sweeper stopped early."""
    compose_next(root)
    with outside_hydra([sys.argv[0], "--multirun", *arguments]):
        try:
            hydra.main(config_path=None, config_name=ROOT_NAME, **VERSION_BASE)(task)()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
    return 0
