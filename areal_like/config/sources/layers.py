"""Provenance: layers merged leaf by leaf in the order of Hydra, with the history of each value."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from areal_like.config.schema import Schema
from areal_like.config.sources.leaves import Leaf

LayerKind = Literal[
    "default", "group of the schema", "group of the file", "file", "group of the command line", "override"
]


@dataclass(frozen=True)
class Layer:
    """One layer. `deletes` is a map entry that an override removes."""

    kind: LayerKind
    name: str
    leaves: tuple[Leaf, ...]
    deletes: str | None = None


@dataclass(frozen=True)
class Origin:
    """A value as one layer set it; `beaten` are the overridden values of weaker layers, strongest first."""

    kind: LayerKind
    where: str
    value: Any
    beaten: tuple["Origin", ...] = ()


class MergedLayers:
    """The merged tree, and the history of every path that a layer set."""

    def __init__(self, schema: Schema, tree: dict[str, Any]) -> None:
        self.schema, self.tree = schema, tree
        self.history: dict[str, list[Origin]] = {}

    def apply(self, layers: Iterable[Layer]) -> "MergedLayers":
        for layer in layers:
            if layer.deletes is not None:
                self._delete(layer.deletes)
            for leaf in layer.leaves:
                self.set(leaf.path, leaf.value)
                self.history.setdefault(leaf.path, []).append(Origin(layer.kind, leaf.where, leaf.value))
        return self

    def has(self, path: str) -> bool:
        node: Any = self.tree
        for name in path.split("."):
            if not isinstance(node, dict) or name not in node:
                return False
            node = node[name]
        return True

    def set(self, path: str, value: Any) -> None:
        node = self.tree
        *above, name = path.split(".")
        for step in above:
            if not isinstance(node.get(step), dict):
                node[step] = {}
            node = node[step]
        if value == {} and isinstance(value, dict) and isinstance(node.get(name), dict):
            return
        node[name] = value

    def _delete(self, path: str) -> None:
        node: Any = self.tree
        *above, name = path.split(".")
        for step in above:
            node = node.get(step) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(name, None)
        for known in [known for known in self.history if known == path or known.startswith(path + ".")]:
            del self.history[known]

    def origin(self, path: str) -> Origin | None:
        """The origin of the value at `path`; None if no layer set it."""
        origins = list(self.history.get(path, []))
        if not origins:
            return None
        last = origins[-1]
        return Origin(last.kind, last.where, last.value, tuple(reversed(origins[:-1])))


def fill_reopened_sections(schema: Schema, tree: dict[str, Any]) -> dict[str, Any]:
    """Adds missing defaults to an optional section that one layer set to null and a stronger one expanded again."""
    for path, section in schema.sections.items():
        if "[]" in path or not section.optional:
            continue
        node: Any = tree
        for name in path.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, dict):
            for name, value in schema.section_defaults(path).items():
                node.setdefault(name, value)
    return tree
