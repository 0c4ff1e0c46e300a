"""Composition by Hydra: its defaults list selects the files, their order and their packages, its loader merges them.

Hydra reads no file: it gets the checked values of each. Its own settings (logging, sweeper, ...) and its plugins take
no part in the result, and are not loaded.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra.version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from areal_like.config.schema import ITEM_KEY
from areal_like.config.sources.layers import Layer
from areal_like.config.sources.root import ROOT, SCHEMA, CompositionFiles


class HydraCompositionError(Exception):
    """Hydra could not compose the configuration."""


class HydraComposition:
    """One composition: first its order, then, with the values of each file, its result."""

    def __init__(self, files: CompositionFiles) -> None:
        if hydra.__version__.startswith("1.3."):  # later versions have one behaviour only
            hydra.version.setbase("1.3")
        setup_globals()  # registers Hydra's resolvers, such as `${now:%Y}`
        self.files = _Files(files)
        with _reported():
            self.defaults = create_defaults_list(
                self.files, ROOT, overrides_list=[], prepend_hydra=False, skip_missing=False
            ).defaults

    def order(self) -> list[tuple[str, str]]:
        """(config path, package) of each file, weakest first."""
        return [(str(d.config_path), d.package or "") for d in self.defaults if d.config_path not in (None, SCHEMA)]

    def compose(
        self, trees: dict[str, dict[str, Any]], overrides: Sequence[Layer]
    ) -> tuple[dict[str, Any], list[Layer]]:
        """The merged tree with unresolved references, and the overrides of an entry or list item that does not exist.
        `trees`: values by config path."""
        for name, tree in trees.items():
            self.files.results[name].config = OmegaConf.create(tree)
        loader, refused = ConfigLoaderImpl(ConfigSearchPathImpl()), []
        with _reported():
            composed = loader._compose_config_from_defaults_list(self.defaults, self.files)
            for override in overrides:
                try:
                    loader._apply_overrides_to_config(_for_hydra(override), composed)
                except HydraException:
                    if override.deletes is None and not any(ITEM_KEY.fullmatch(leaf.path) for leaf in override.leaves):
                        raise
                    refused.append(override)
        plain = OmegaConf.to_container(composed, resolve=False)
        assert isinstance(plain, dict)
        return {str(name): value for name, value in plain.items()}, refused


class _Files(ConfigRepository):
    """Where Hydra looks for files: their `defaults:` lists first, their values once they are checked."""

    def __init__(self, files: CompositionFiles) -> None:
        self.files = files
        self.results: dict[str, ConfigResult] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        name = config_path.removesuffix(".yaml")
        listed = self.files.listed(name)
        if name not in self.results and listed is not None:
            entries, header = listed
            result = ConfigResult("", name, OmegaConf.create({}), {"package": None, **header}, is_schema_source=True)
            result.defaults_list = self._create_defaults_list(name, OmegaConf.create(entries))
            self.results[name] = result
        return self.results.get(name)

    def config_exists(self, config_path: str) -> bool:
        return self.files.listed(config_path.removesuffix(".yaml")) is not None

    def group_exists(self, config_path: str) -> bool:
        return self.files.library.options_of(config_path) is not None

    def get_group_options(self, group_name: str, results_filter: ObjectType | None = ObjectType.CONFIG) -> list[str]:
        return self.files.library.options_of(group_name) or []

    def get_sources(self) -> list[ConfigSource]:
        return []


def _for_hydra(layer: Layer) -> list[Override]:
    if layer.deletes is not None:
        return [Override(OverrideType.DEL, layer.deletes, None, None)]
    return [Override(OverrideType.FORCE_ADD, leaf.path, ValueType.ELEMENT, leaf.value) for leaf in layer.leaves]


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        lines = [line.strip() for line in str(error or error.__cause__).splitlines() if line.strip()]
        raise HydraCompositionError(lines[0] if lines else type(error).__name__) from None
