"""What Hydra composes in a sweep in place of an experiment: which keys and groups exist, and the `hydra` section.

The user's configuration is composed elsewhere, strictly, for each point. The root lives in an address
(`sweep-root://...`), so that the processes of any launcher find it in what they are sent.
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
"""Left as they are in an address, for whoever reads Hydra's records; `$` is not, Hydra would resolve it."""


@dataclass(frozen=True)
class HydraRoot:
    """What Hydra composes in place of an experiment: config groups (their options empty), keys, the `hydra` section."""

    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    names: Sequence[str] = ()
    """Top-level keys. Below each, everything may be set: a sweeper may name any key."""
    placeholders: Sequence[str] = ()
    """The groups, as Hydra names them in a defaults list, that a sweep may choose."""
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
    """Serves the root; its state is its address, so that it survives the way into another process."""

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
    """Puts the root onto the search path of the next Hydra that starts, and of no other in this process."""

    pending: str = ""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if HydraRootPath.pending:
            search_path.prepend("areal-like sweep", HydraRootPath.pending)
            HydraRootPath.pending = ""


def _stem(config_path: str) -> str:
    return config_path.removesuffix(".yaml")


def compose_next(root: HydraRoot) -> None:
    """The next Hydra that starts composes this root."""
    Plugins.instance().register(HydraRootSource)
    Plugins.instance().register(HydraRootPath)
    HydraRootPath.pending = root.address()
