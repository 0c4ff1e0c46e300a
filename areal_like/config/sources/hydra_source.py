"""Composition by Hydra: a ConfigSource provides the checked files; Hydra decides the order and merges them.

Hydra itself reads no files except its own settings.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hydra
from hydra.conf import HydraConf
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from areal_like.config.sources.root import ROOT, SCHEMA, Content

SCHEME = "areal-like"


@dataclass
class ConfigProvider:
    """Contents by config path, and the options of each group."""

    content: Callable[[str], Content | None]
    options_of: Callable[[str], list[str] | None]


_providers: list[ConfigProvider] = []


class ProvidedConfigSource(ConfigSource):
    """Hydra's extension point for other sources of configurations."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def available(self) -> bool:
        return bool(_providers)

    def is_config(self, config_path: str) -> bool:
        return bool(_providers) and _providers[-1].content(_name(config_path)) is not None

    def is_group(self, config_path: str) -> bool:
        return bool(_providers) and _providers[-1].options_of(config_path) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if not _providers or results_filter == ObjectType.GROUP:
            return []
        return _providers[-1].options_of(config_path) or []

    def load_config(self, config_path: str) -> ConfigResult:
        provided = _providers[-1].content(_name(config_path)) if _providers else None
        if provided is None:
            raise ConfigLoadError(f"Config not found: {config_path}")
        content, header = provided
        if config_path == ROOT:
            content = {**content, "defaults": [*content["defaults"], *_without_hydra_groups()]}
        return ConfigResult(
            config=OmegaConf.create(content),
            path=f"{SCHEME}://{config_path}",
            provider=SCHEME,
            header={"package": None, **header},
        )


class ProvidedSearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if _providers:
            search_path.prepend(provider=SCHEME, path=f"{SCHEME}://here")


def _name(config_path: str) -> str:
    return config_path.removesuffix(".yaml")


def _without_hydra_groups() -> list[Any]:
    """For the end of the root's `defaults:`: disables Hydra's groups (logging, help, sweeper ...), which are not
    needed."""
    return [{f"override hydra/{group}": None} for entry in HydraConf().defaults for group in entry]


@contextmanager
def initialized_hydra(served: ConfigProvider) -> Iterator[None]:
    """Hydra, initialized with a provider; the previous initialization is restored afterwards."""
    plugins = Plugins.instance()
    if ProvidedConfigSource not in plugins.discover(ConfigSource):
        plugins.register(ProvidedConfigSource)
        plugins.register(ProvidedSearchPath)
    _providers.append(served)
    wants_base = hydra.__version__.startswith("1.3")
    arguments: dict[str, Any] = {"version_base": "1.3"} if wants_base else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A module without YAML files. `hydra.initialize` would read the source of everything on the stack first.
            with hydra.initialize_config_module("areal_like.config", job_name="areal_like", **arguments):
                yield
    finally:
        _providers.pop()


class HydraCompositionError(Exception):
    """Hydra could not compose the configuration."""


def merge_order() -> list[tuple[str, str]]:
    """(config path, package) of each layer below the overrides, weakest first, in Hydra's order."""
    loader = GlobalHydra.instance().config_loader()
    try:
        result = loader.compute_defaults_list(config_name=ROOT, overrides=[], run_mode=RunMode.RUN)
    except (HydraException, OmegaConfBaseException) as error:
        raise HydraCompositionError(_first_line(error)) from None
    return [
        (str(default.config_path), default.package or "")
        for default in result.defaults
        if default.config_path is not None
        and default.config_path != SCHEMA
        and not default.config_path.startswith("hydra/")
        and not (default.package or "").startswith("hydra")
    ]


def compose(overrides: list[str]) -> dict[str, Any]:
    """The composed tree with unresolved references."""
    try:
        composed = hydra.compose(config_name=ROOT, overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise HydraCompositionError(_first_line(error)) from None
    assert isinstance(composed, DictConfig)
    plain = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items()}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error or error.__cause__).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
