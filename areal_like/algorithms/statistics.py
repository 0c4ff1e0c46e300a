"""Statistics of a loss that can be summed over micro-batches and ranks."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

TOKENS = "tokens"


class Statistics(NamedTuple):
    """Detached float64 scalars. `sums` are over tokens, `sums["tokens"]` of them; `maxima` are maxima over tokens."""

    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]


def statistics(counts: Tensor, sums: Mapping[str, Tensor], maxima: Mapping[str, Tensor]) -> Statistics:
    """From values per token, which are 0 where they do not count."""

    def largest(values: Tensor) -> Tensor:
        return values.amax() if values.numel() else values.new_zeros(())

    return Statistics(
        {name: exact_sum(values.detach()) for name, values in {TOKENS: counts, **sums}.items()},
        {name: largest(values.detach()).double() for name, values in maxima.items()},
    )


def exact_sum(values: Tensor) -> Tensor:
    """In double precision on a CPU. A GPU adds in float32, pair by pair, without a copy of the values in double."""
    return values.sum(dtype=torch.float64 if values.device.type == "cpu" else torch.float32).double()
