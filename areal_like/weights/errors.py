"""Weights that must not be served, in words that name what is wrong with them."""

import re
from collections.abc import Iterable, Sequence

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
"""How the models of transformers number their layers."""

MAX_NAMED = 3


class BadWeights(ValueError):
    """Weights of a version that are damaged, incomplete, of another model, or out of turn."""


class GroupBroken(RuntimeError):
    """Weights did not come through: the group in which they were sent was broken up, or one of it is gone. Nothing is
    wrong with the weights, and they may be sent again."""


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to; None for embeddings, last norm and head."""
    found = LAYER.search(name)
    return int(found[1]) if found else None


def group_by_layer(names: Iterable[str]) -> dict[int | None, list[str]]:
    """Names layer by layer; those of no layer come last."""
    layers: dict[int | None, list[str]] = {}
    for name in names:
        layers.setdefault(layer_of(name), []).append(name)
    return dict(sorted(layers.items(), key=lambda item: (item[0] is None, item[0] or 0)))


def count_by_layer(names: Sequence[str], what: str) -> str:
    """Such as `layer 2: 9 tensors are missing: model.layers.2.input_layernorm.weight, ... and 6 more`."""
    return "; ".join(
        f"{_place(layer)}: {_tensors(len(found))} {what}: {_some(found)}"
        for layer, found in group_by_layer(names).items()
    )


def with_layer(name: str) -> str:
    layer = layer_of(name)
    return f"tensor {name}" if layer is None else f"tensor {name} (layer {layer})"


def _place(layer: int | None) -> str:
    return "outside of the layers" if layer is None else f"layer {layer}"


def _tensors(count: int) -> str:
    return "1 tensor is" if count == 1 else f"{count} tensors are"


def _some(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
