"""Statistics of a loss that can be summed over micro-batches and ranks."""

from collections.abc import Mapping
from typing import NamedTuple

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
        {name: values.detach().double().sum() for name, values in {TOKENS: counts, **sums}.items()},
        {name: largest(values.detach().double()) for name, values in maxima.items()},
    )
