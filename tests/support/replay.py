"""The values of a configuration a second time, from its layers alone: a slow, plain merge without Hydra."""

from typing import Any

from areal_like.config.dotted_path import value_at
from areal_like.config.loaded import Loaded
from areal_like.config.schema import Schema


def replayed(loaded: Loaded) -> dict[str, Any]:
    """The tree with unresolved references, as `loaded.raw` must be."""
    tree = loaded.schema.defaults()
    for layer in loaded.provenance.layers:
        if layer.deletes is not None:
            above, _, name = layer.deletes.rpartition(".")
            del value_at(tree, above)[name]
        for leaf in layer.leaves:
            value = leaf.value
            for name in reversed(leaf.path.split(".")):
                value = {name: value}
            tree = merged(tree, value)
    return filled(loaded.schema, tree)


def filled(schema: Schema, tree: dict[str, Any]) -> dict[str, Any]:
    """With the missing defaults of optional sections that are not null."""
    for path, section in schema.sections.items():
        node = value_at(tree, path)
        if section.optional and isinstance(node, dict):
            node |= merged(schema.section_defaults(path), node)
    return tree


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = [name for name in above if isinstance(above[name], dict) and isinstance(below.get(name), dict)]
    return {**below, **above, **{name: merged(below[name], above[name]) for name in both}}
