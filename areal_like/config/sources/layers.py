"""Where each value came from and what it beat: the layers replayed leaf by leaf, in the order of Hydra's merge."""

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
    """One layer, weakest first in a list of them. `deletes` is a map entry that an override takes away."""

    kind: LayerKind
    name: str
    leaves: tuple[Leaf, ...]
    deletes: str | None = None


@dataclass(frozen=True)
class Origin:
    """A value as one layer set it; `beaten` are the weaker layers' values, strongest first."""

    kind: LayerKind
    where: str
    value: Any
    beaten: tuple["Origin", ...] = ()


class MergedLayers:
    """The merged tree and the history of every path that any layer set."""

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
        """The layer whose value stands at `path`, itself or for a section above it; None where no layer set it."""
        said = list(self.history.get(path, []))
        if not said:
            return None
        last = said[-1]
        return Origin(last.kind, last.where, last.value, tuple(reversed(said[:-1])))


def fill_reopened_sections(schema: Schema, tree: dict[str, Any]) -> dict[str, Any]:
    """Fills what an optional section lacks that was emptied by one layer and opened again by a stronger one."""
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
