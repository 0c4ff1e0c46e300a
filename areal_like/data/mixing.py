"""The order in which the rows of several sources are mixed into one list.

Rotation: one row of each source in turn. Draws: the source of each row is drawn by its probability. Either ends with
the first source without a further row, or repeats short sources until every row of each was used.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_like.config.environments import frequencies
from areal_like.config.sections.curriculum import BY_ENVIRONMENT
from areal_like.process.seeds import derive_seed

Mix = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The source of each mixed row, and its number there."""

DRAWS = 1000
"""Drawn at once."""

FIRST_EXHAUSTED, ALL_EXHAUSTED = "first_exhausted", "all_exhausted"


def training_mix(config: Any, sizes: Sequence[int]) -> Mix:
    """As `environments.mix` sets it. Where the environment of each row is drawn later, all rows once."""
    mix = config.environments.mix
    if mix.strategy == "concatenate" or len(sizes) == 1 or config.curriculum.type == BY_ENVIRONMENT:
        return concatenated(sizes)
    rates = frequencies(mix, config.environments.train)
    if rates is None:
        return in_rotation(sizes, mix.stopping_strategy)
    seed = derive_seed(config.seed, "environments") if mix.seed is None else mix.seed
    return by_draws(sizes, rates, mix.stopping_strategy, seed)


def concatenated(sizes: Sequence[int]) -> Mix:
    """All rows of the first source, then all of the next one."""
    sources = np.repeat(np.arange(len(sizes)), sizes)
    return sources, np.concatenate([np.arange(size) for size in sizes]).astype(np.int64)


def in_rotation(sizes: Sequence[int], stopping: str) -> Mix:
    """A row of each source in turn, until the first or the last of them is exhausted; shorter ones begin anew."""
    rounds = min(sizes) if stopping == FIRST_EXHAUSTED else max(sizes)
    sources = np.tile(np.arange(len(sizes)), rounds)
    return sources, np.repeat(np.arange(rounds), len(sizes)) % np.asarray(sizes)[sources]


def by_draws(sizes: Sequence[int], rates: Sequence[float], stopping: str, seed: int) -> Mix:
    """The source of each row is drawn. The mix ends with the draw that exhausts the first or the last of them."""
    shares = np.asarray(rates, float)
    draws = np.random.default_rng(seed)
    is_over = np.any if stopping == FIRST_EXHAUSTED else np.all
    drawn, counts = [], np.zeros(len(sizes), np.int64)
    while not is_over(counts >= sizes):
        drawn.append(draws.choice(len(sizes), size=DRAWS, p=shares / shares.sum()))
        counts += np.bincount(drawn[-1], minlength=len(sizes))
    sources = np.concatenate(drawn)
    numbers, ends = np.empty(len(sources), np.int64), []
    for source, size in enumerate(sizes):
        places = np.flatnonzero(sources == source)
        numbers[places] = np.arange(len(places)) % size
        if len(places) >= size:
            ends.append(int(places[size - 1]) + 1)
    end = min(ends) if stopping == FIRST_EXHAUSTED else max(ends)
    return sources[:end], numbers[:end]
