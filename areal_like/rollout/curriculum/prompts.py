"""Which training rows are the same prompt, and the environment of each: a mix may repeat the rows of an environment."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_like.data.mixing import Mix, training_mix


@dataclass(frozen=True)
class Prompts:
    """R rows of P prompts. The prompts are numbered in the order of their first rows."""

    prompt_R: NDArray[np.int64]
    first_P: NDArray[np.int64]
    """The first row of each prompt."""
    environment_P: NDArray[np.int64]
    names: tuple[str, ...] = field(default=())
    """Of the environments; none where rows have no environment."""

    def __len__(self) -> int:
        return len(self.first_P)

    def first(self, row: int) -> int:
        """The row that stands for all rows of the same prompt."""
        return int(self.first_P[self.prompt_R[row]])

    def without_repeats(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first row of each prompt, in the order in which the prompts begin."""
        prompts = self.prompt_R[rows]
        _, places = np.unique(prompts, return_index=True)
        return self.first_P[prompts[np.sort(places)]]


def unmixed(num_rows: int, name: str = "") -> Prompts:
    """Each row is a prompt."""
    rows = np.arange(num_rows)
    return Prompts(rows, rows, np.zeros(num_rows, np.int64), (name,) if name else ())


def of_mix(mix: Mix, names: Sequence[str]) -> Prompts:
    sources, numbers = mix
    keys = sources * (int(numbers.max()) + 1) + numbers
    _, first, of_key = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return Prompts(place[of_key], first[order], sources[first[order]], tuple(names))


def prompts_of(config: Any, num_rows: int, environments: Sequence[tuple[str, int]]) -> Prompts:
    """`environments`: name and number of rows of each, in the order of the configuration."""
    if not environments:
        return unmixed(num_rows)
    return of_mix(training_mix(config, [size for _, size in environments]), [name for name, _ in environments])
