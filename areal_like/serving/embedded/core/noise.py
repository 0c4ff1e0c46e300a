"""The noise of sampling: a function of (seed of the request, number of the sample, position), and of nothing else.

What else is in the batch, in which row a sequence stands and how often it was interrupted do not change it.
"""

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
ONE = np.uint64(1)


def uniform_noise(
    seeds: NDArray[np.uint64], samples: NDArray[np.uint64], positions: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """One number between 0 and 1 (neither of them) for each row, by two rounds of splitmix64."""
    with np.errstate(over="ignore"):
        state = _mixed(seeds + GOLDEN * (samples + ONE))
        state = _mixed(state + GOLDEN * (positions + ONE))
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * FIRST
    state = (state ^ (state >> np.uint64(27))) * SECOND
    return state ^ (state >> np.uint64(31))
