"""Persistent buffers of a model: tensors in its checkpoints that are not parameters."""

from collections.abc import Iterator

from torch import Tensor, nn


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Such as the load-balancing bias of some mixtures of experts; not buffers that are recomputed, such as rotary
    frequencies."""
    seen: set[int] = set()
    for owner, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                yield f"{owner}.{name}".removeprefix("."), buffer
