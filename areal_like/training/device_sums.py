"""Sums over the micro-batches of a step that stay on the device until the step is done: reading a number waits for all
kernels before it."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


class DeviceSums:
    """Sums and maxima of scalars by name, in double precision. `read` transfers all of them at once."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._maxima: dict[tuple[str, ...], Tensor] = {}

    def add(self, sums: Mapping[str, Tensor], maxima: Mapping[str, Tensor] | None = None) -> None:
        """Maxima are at least 0; nan is left out of them."""
        _join(self._sums, sums, torch.add)
        _join(self._maxima, maxima or {}, torch.fmax)

    def read(self) -> dict[str, float]:
        """Waits for the device. A name that was never added is missing."""
        vectors = {**self._sums, **self._maxima}
        if not vectors:
            return {}
        numbers = torch.cat(list(vectors.values())).tolist()
        return dict(zip((name for names in vectors for name in names), numbers, strict=True))


def _join(
    vectors: dict[tuple[str, ...], Tensor], values: Mapping[str, Tensor], join: Callable[[Tensor, Tensor], Tensor]
) -> None:
    if values:
        names, vector = tuple(values), torch.stack([value.detach().double() for value in values.values()])
        vectors[names] = join(vectors[names] if names in vectors else torch.zeros_like(vector), vector)
