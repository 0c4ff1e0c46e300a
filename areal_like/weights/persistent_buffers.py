"""A model's tensors that are in its checkpoints and are no parameters."""

from collections.abc import Iterator

from torch import Tensor, nn


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Such as what some mixtures of experts are balanced by; not what is computed anew, as rotary frequencies are."""
    seen: set[int] = set()
    for owner, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                yield f"{owner}.{name}".removeprefix("."), buffer
