"""Errors of weights and their transfer, and texts that name tensors by layer."""

import re
from collections.abc import Iterable, Sequence

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
"""Layer numbers in tensor names of transformers models."""

MAX_NAMED = 3


class BadWeights(ValueError):
    """Weights that are damaged, incomplete, of another model or run, or not newer than those served."""


class GroupBroken(RuntimeError):
    """The transfer failed: its group was aborted, or a member is gone. The weights are fine and may be sent again."""


def layer_of(name: str) -> int | None:
    """The layer of a tensor; None for embeddings, last norm and head."""
    match = LAYER.search(name)
    return int(match[1]) if match else None


def group_by_layer(names: Iterable[str]) -> dict[int | None, list[str]]:
    """Names by layer; those without a layer come last."""
    layers: dict[int | None, list[str]] = {}
    for name in names:
        layers.setdefault(layer_of(name), []).append(name)
    return dict(sorted(layers.items(), key=lambda item: (item[0] is None, item[0] or 0)))


def count_by_layer(names: Sequence[str], what: str) -> str:
    """Such as `layer 2: 9 tensors are missing: model.layers.2.input_layernorm.weight, ... and 6 more`."""
    return "; ".join(
        f"{_place(layer)}: {_tensors(len(of_layer))} {what}: {_some(of_layer)}"
        for layer, of_layer in group_by_layer(names).items()
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
