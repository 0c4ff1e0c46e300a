"""Provenance: which layer set which value, in the order in which Hydra merges them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from areal_like.config.dotted_path import MISSING, value_at
from areal_like.config.sources.leaves import Leaf

LayerKind = Literal[
    "default",
    "group of the schema",
    "group of the file",
    "known dataset",
    "known example",
    "file",
    "group of the command line",
    "override",
]
GROUPS: tuple[LayerKind, ...] = ("group of the schema", "group of the file", "group of the command line")


@dataclass(frozen=True)
class Layer:
    """One file, or one override. `deletes` is a map entry that an override removes."""

    kind: LayerKind
    leaves: tuple[Leaf, ...] = ()
    deletes: str | None = None


@dataclass(frozen=True)
class Origin:
    """A value as one layer set it; `beaten` are the overridden values of weaker layers, strongest first."""

    kind: LayerKind
    where: str
    value: Any
    beaten: tuple["Origin", ...] = ()


class Provenance:
    """The layers, weakest first, and the history of every path that one of them sets."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self.history: dict[str, list[Origin]] = {}
        for layer in self.layers:
            if layer.deletes is not None:
                below = f"{layer.deletes}."
                kept = (path for path in self.history if path != layer.deletes and not path.startswith(below))
                self.history = {path: self.history[path] for path in kept}
            for leaf in layer.leaves:
                if leaf.path not in self.history:
                    self.history[leaf.path] = self._in_weaker_list(leaf.path)
                self.history[leaf.path].append(Origin(layer.kind, leaf.where, leaf.value))

    def _in_weaker_list(self, path: str) -> list[Origin]:
        """What a weaker layer has set as a part of a whole list, as a file does for `a.list.0.key`."""
        above, _, name = path.rpartition(".")
        while above:
            origins = self.history.get(above)
            if origins and isinstance(origins[-1].value, list):
                value = value_at(origins[-1].value, name, MISSING)
                return [] if value is MISSING else [replace(origins[-1], value=value)]
            above, _, last = above.rpartition(".")
            name = f"{last}.{name}"
        return []

    def origin(self, path: str) -> Origin | None:
        """The origin of the value at `path`; None if no layer set it."""
        origins = self.history.get(path)
        return replace(origins[-1], beaten=tuple(reversed(origins[:-1]))) if origins else None
