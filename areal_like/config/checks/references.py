"""`critic.optimizer: ${actor.optimizer}` and then `critic.optimizer.lr=1`: the second would reach into the first."""

from collections.abc import Iterator, Sequence

from areal_like.config.checks.values import is_interpolation
from areal_like.config.problems import Problem
from areal_like.config.schema import Schema, accepts_map
from areal_like.config.sources.layers import Layer
from areal_like.config.sources.leaves import Leaf


def set_below_references(layers: Sequence[Layer], schema: Schema) -> Iterator[Problem]:
    """Keys that a layer sets below a section or map which a weaker layer made a reference."""
    references: dict[str, Leaf] = {}
    for layer in layers:
        for leaf in layer.leaves:
            above = next((path for path in references if leaf.path.startswith(path + ".")), None)
            if above is not None:
                said = f"{references[above].value} ({references[above].where})"
                yield Problem(leaf.written, f"{above} is {said}; keys below a reference cannot be set", leaf.where)
            key = schema.keys.get(leaf.path)
            holds_keys = leaf.path in schema.sections or (key is not None and accepts_map(key.kind))
            if holds_keys and is_interpolation(leaf.value):
                references[leaf.path] = leaf
            else:
                references.pop(leaf.path, None)
