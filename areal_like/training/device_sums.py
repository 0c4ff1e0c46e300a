"""Sums over the micro-batches of a step that stay on the device until the step is done: reading a number waits for all
kernels before it."""

import operator
from collections.abc import Callable, Mapping

import torch
from torch import Tensor


class DeviceSums:
    """Sums and maxima of scalars by name, in double precision. They are read together, or with other numbers that a
    step waits for.

    Calls may have different names: a user's loss need not report the same statistics for every micro-batch.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._maxima: dict[tuple[str, ...], Tensor] = {}
        self._read: dict[str, float] | None = None

    def add(self, sums: Mapping[str, Tensor], maxima: Mapping[str, Tensor] | None = None) -> None:
        """Maxima are at least 0; nan is left out of them."""
        self._read = None
        _join(self._sums, sums, torch.add)
        _join(self._maxima, maxima or {}, torch.fmax)

    def read(self) -> dict[str, float]:
        """Waits for the device, unless nothing was added since the last wait. A name that was never added is
        missing."""
        if self._read is None:
            self.read_with(torch.zeros(0, dtype=torch.float64))
        assert self._read is not None
        return self._read

    def read_with(self, others: Tensor) -> list[float]:
        """Waits for the device once, for the sums and for `others`, which it returns."""
        vectors = [*self._sums.values(), *self._maxima.values()]
        joined = torch.cat([others.to(vectors[0]), *vectors]) if vectors else others
        numbers = joined.tolist()
        rest = iter(numbers[len(others) :])
        read: dict[str, float] = {}
        for kind, add in ((self._sums, operator.add), (self._maxima, max)):
            for name in (name for names in kind for name in names):
                read[name] = add(read.get(name, 0.0), next(rest))
        self._read = read
        return numbers[: len(others)]


def _join(
    vectors: dict[tuple[str, ...], Tensor], values: Mapping[str, Tensor], join: Callable[[Tensor, Tensor], Tensor]
) -> None:
    if values:
        names, vector = tuple(values), torch.stack([value.detach().double() for value in values.values()])
        vectors[names] = join(vectors[names] if names in vectors else torch.zeros_like(vector), vector)
