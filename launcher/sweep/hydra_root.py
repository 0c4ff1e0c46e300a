"""The configuration that Hydra composes in a sweep in place of an experiment: known keys, groups, `hydra` section.

The user's configuration is composed separately for each point. The root is encoded in its address
(`sweep-root://...`), so that the processes of any Hydra launcher receive it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

SCHEME = "sweep-root"
ROOT_NAME = "areal_like_sweep"
UNQUOTED = ' {}[]":,/@_-.'
"""Not quoted in an address, so that Hydra's records stay legible; `$` is quoted, as Hydra would resolve it."""


@dataclass(frozen=True)
class HydraRoot:
    """Config groups (with empty options), keys, and the `hydra` section."""

    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    names: Sequence[str] = ()
    """Top-level keys; everything below them may be set."""
    placeholders: Sequence[str] = ()
    """The groups of Hydra's defaults list from which a sweep may choose."""
    hydra: Mapping[str, Any] = field(default_factory=dict)
    hydra_choices: Mapping[str, Any] = field(default_factory=dict)

    def address(self) -> str:
        return f"{SCHEME}://{quote(json.dumps(asdict(self), default=str), safe=UNQUOTED)}"

    def content(self) -> DictConfig:
        quiet = {"hydra/hydra_logging": "none", "hydra/job_logging": "none"}
        defaults: list[Any] = [{name: None} for name in self.placeholders]
        defaults += [{f"override {name}": option} for name, option in {**quiet, **self.hydra_choices}.items()]
        content = OmegaConf.create({"defaults": [*defaults, "_self_"]})
        content.hydra = OmegaConf.merge({"output_subdir": None, "job": {"chdir": False}}, dict(self.hydra))
        for name in self.names:
            content[name] = OmegaConf.create({}, flags={"struct": False})
        return content


class HydraRootSource(ConfigSource):
    """Config source of the root; its only state is the address, so that it can be sent to other processes."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self.root = HydraRoot(**json.loads(unquote(self.path)))

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        content = self.root.content() if _stem(config_path) == ROOT_NAME else OmegaConf.create({})
        return ConfigResult(self.provider, f"{SCHEME}://{config_path}", content, {"package": None})

    def is_group(self, config_path: str) -> bool:
        return any(group == config_path or group.startswith(f"{config_path}/") for group in self.root.groups)

    def is_config(self, config_path: str) -> bool:
        group, _, option = _stem(config_path).rpartition("/")
        return option in self.root.groups.get(group, ()) if group else option == ROOT_NAME

    def available(self) -> bool:
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return [] if results_filter == ObjectType.GROUP else sorted(self.root.groups.get(config_path, ()))


class HydraRootPath(SearchPathPlugin):
    """Adds the root to the search path of the next Hydra instance only."""

    pending: str = ""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if HydraRootPath.pending:
            search_path.prepend("areal-like sweep", HydraRootPath.pending)
            HydraRootPath.pending = ""


def _stem(config_path: str) -> str:
    return config_path.removesuffix(".yaml")


def compose_next(root: HydraRoot) -> None:
    """Makes the next Hydra instance compose this root."""
    Plugins.instance().register(HydraRootSource)
    Plugins.instance().register(HydraRootPath)
    HydraRootPath.pending = root.address()
