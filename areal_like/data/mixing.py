"""The order in which the rows of several sources are mixed into one list.

Rotation: one row of each source in turn. Draws: the source of each row is drawn by its probability. Either ends with
the first source without a further row, or repeats short sources until every row of each was used.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000
"""Drawn at once."""

FIRST_EXHAUSTED, ALL_EXHAUSTED = "first_exhausted", "all_exhausted"


def concatenated(sizes: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The source of each mixed row, and its number there."""
    sources = np.repeat(np.arange(len(sizes)), sizes)
    return sources, np.concatenate([np.arange(size) for size in sizes]).astype(np.int64)


def in_rotation(sizes: Sequence[int], stopping: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same for sources in turn."""
    rounds = min(sizes) if stopping == FIRST_EXHAUSTED else max(sizes)
    sources = np.tile(np.arange(len(sizes)), rounds)
    return sources, np.repeat(np.arange(rounds), len(sizes)) % np.asarray(sizes)[sources]


def by_draws(
    sizes: Sequence[int], frequencies: Sequence[float], stopping: str, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same for drawn sources: the mix ends with the draw that exhausts the first or the last of them."""
    shares = np.asarray(frequencies, float)
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
