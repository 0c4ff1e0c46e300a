"""A loaded configuration: values, origins, and an instance of its dataclass."""

import dataclasses
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from areal_like.config.dotted_path import MISSING, value_at
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.interpolation import WHOLE
from areal_like.config.redact import Redactor
from areal_like.config.schema import Schema, ancestors
from areal_like.config.sources.layers import Origin, Provenance
from areal_like.config.sources.leaves import Leaf


@dataclasses.dataclass(frozen=True)
class Loaded:
    """`raw` has references as written, `values` resolved ones; "auto" stays "auto" in both. `folder`: where a user's
    code and data are searched first, by `experiment_folder`."""

    file: Path
    folder: Path
    overrides: tuple[str, ...]
    experiment: str
    schema: Schema
    schema_name: str | None
    raw: dict[str, Any]
    values: dict[str, Any]
    provenance: Provenance
    foreign: tuple[Leaf, ...] = ()
    hidden_values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of other configurations that its processes get: their secrets are hidden, too."""

    @property
    def cls(self) -> type:
        return self.schema.cls

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path; `default` if there is none (such as below a null section)."""
        return value_at(self.values, path, default)

    def get_raw(self, path: str, default: Any = None) -> Any:
        return value_at(self.raw, path, default)

    @cached_property
    def config(self) -> Any:
        """The values as an instance of the experiment's dataclass: `loaded.config.actor.optimizer.lr`."""
        return build_config(self.cls, self.values)

    def origin(self, path: str) -> Origin:
        """Where the value at `path` was set, and the values that it overrides."""
        origin = self.provenance.origin(path)
        default = self._default_origin(path)
        if origin is not None:
            beaten = origin.beaten if default is None else (*origin.beaten, default)
            return dataclasses.replace(origin, beaten=beaten)
        for above in reversed(ancestors(path)):
            whole = self.provenance.origin(above)
            if whole is not None and not isinstance(whole.value, dict):
                value = self.get_raw(path, MISSING)
                if value is MISSING and isinstance(whole.value, list):
                    break  # the item does not set it
                return Origin(whole.kind, whole.where, None if value is MISSING else value, whole.beaten)
        return default or Origin("default", "not set", None)

    def _default_origin(self, path: str) -> Origin | None:
        key = self.schema.keys.get(self.schema.declared_path(path))
        if key is not None:
            own = key.default == self.schema.own_default(key.path)
            return Origin("default", f"default of {key.owner.__name__}.{key.name}" if own else "default", key.default)
        section = self.schema.sections.get(path)
        if section is not None and section.default_null:
            return Origin("default", "default", None)
        return None

    def changed(self) -> list[str]:
        """The paths whose value differs from the schema's default, in the order of the tree."""
        order = {name: index for index, name in enumerate(self.schema.names())}
        paths = [path for path in self.provenance.history if self._is_changed(path)]
        return sorted(paths, key=lambda path: (order.get(path, order.get(path.rpartition(".")[0], len(order))), path))

    def _is_changed(self, path: str) -> bool:
        default = self._default_origin(path)
        if value_at(self.raw, path, MISSING) is MISSING:
            return False
        if default is None:
            return True
        reference = WHOLE.fullmatch(default.value) if isinstance(default.value, str) else None
        usual = self.get(reference[1]) if reference else default.value
        return bool(self.get(path) != usual)

    @cached_property
    def redactor(self) -> Redactor:
        """Shows values of this configuration without its secrets."""
        return make_redactor(self.schema, self.values, self.provenance).also_of(self.hidden_values)


def make_redactor(schema: Schema, values: dict[str, Any], provenance: Provenance) -> Redactor:
    """Hides the secrets among the values, among overridden values, and in the environment."""
    beaten = [{path: origin.value} for path, origins in provenance.history.items() for origin in origins]
    return Redactor(secret_keys(schema), values, [*beaten, dict(os.environ)])


def secret_keys(schema: Schema) -> frozenset[str]:
    return frozenset(path for path, key in schema.keys.items() if key.constraints.secret)


def build_config(cls: type, values: dict[str, Any]) -> Any:
    """An instance of a section's dataclass, and of those below it."""
    schema_kinds = {field.name: values.get(field.name) for field in dataclasses.fields(cls)}
    arguments = {}
    for name, kind in _kinds(cls).items():
        value = schema_kinds[name]
        if kind.name == "section" and isinstance(value, dict) and kind.cls is not None:
            value = build_config(kind.cls, value)
        elif kind.name == "list" and kind.item is not None and kind.item.name == "section" and isinstance(value, list):
            assert kind.item.cls is not None
            value = [build_config(kind.item.cls, item) for item in value]
        arguments[name] = value
    return cls(**arguments)


def _kinds(cls: type) -> dict[str, Any]:
    from areal_like.config.schema import declarations

    return {name: kind for name, (kind, _) in declarations(cls).items()}


def experiment_of(cls: type) -> str:
    """The name of the shipped experiment that a class is or extends."""
    names = {shipped: name for name, shipped in EXPERIMENTS.items()}
    for base in cls.__mro__:
        if base in names:
            return names[base]
    raise TypeError(f"{cls.__name__} extends none of {', '.join(c.__name__ for c in EXPERIMENTS.values())}")
