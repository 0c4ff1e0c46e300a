"""Names of tensors in a model's files, where transformers keeps several of them as one in memory.

The experts of a mixture are the case: files, vLLM and SGLang have matrices for each expert, transformers one tensor for
all experts of a layer. SGLang ignores names that it does not know, so that its experts would never change.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

SMALL = (2, 4, 3, 5)
"""Shape of a tensor for trying out a conversion. No two dimensions are alike."""


class FileTensors(NamedTuple):
    """How a tensor in memory lies in files: whole, or cut into `chunks` along its second dimension, and these along
    their first, one part for each expert."""

    names: tuple[str, ...]
    chunks: int = 0

    def views(self, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        return zip(self.names, self.parts(tensor), strict=True)

    def parts(self, tensor: Tensor) -> list[Tensor]:
        if not self.chunks:
            return [tensor]
        return [part for chunk in tensor.chunk(self.chunks, dim=1) for part in chunk.unbind()]


class HubNames:
    """Of one model. A tensor that is converted in another way keeps its name and its form in memory."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        self._known: dict[str, FileTensors] = {}

    def rename(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        return (part for name, tensor in tensors for part in self.views(name, tensor))

    def views(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The tensor under its names in files, without a copy."""
        if name not in self._known:
            self._known[name] = self._try_out(name, tensor.shape)
        return self._known[name].views(tensor)

    def _try_out(self, name: str, shape: torch.Size) -> FileTensors:
        """Lets transformers convert an empty tensor of this shape, for the names, and a small one, for the contents."""
        small = torch.arange(math.prod(SMALL[: len(shape)])).view(SMALL[: len(shape)])
        try:
            names = tuple(revert_weight_conversion(self._model, {name: torch.empty(shape, device="meta")}))
            parts = list(revert_weight_conversion(self._model, {name: small}).values())
        except (ValueError, KeyError, IndexError, RuntimeError):  # it needs other tensors, or those of the model's size
            return FileTensors((name,))
        for chunks in (0, 1, 2):
            found = FileTensors(names, chunks)
            count = chunks * shape[0] if chunks else 1
            if (chunks == 0 or len(shape) > 1) and len(names) == count and _are_equal(parts, found.parts(small)):
                return found
        return FileTensors((name,))


def _are_equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))
