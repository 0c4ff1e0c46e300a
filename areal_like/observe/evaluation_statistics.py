"""Statistics of evaluations: pass@k, bootstrap bands, and the paired comparison of two evaluations.

Legend: R rows, B resamples. A row's value is the mean (or best) score of its answers. Deterministic: random draws have
a fixed seed.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES, NUM_SIGNS = 1000, 4000
MAX_EXACT = 12
"""Differing rows up to which all signs are tried."""
MAX_DRAWS = 1 << 20
"""At a time; it bounds the memory of a resampling."""
LEVEL = 0.95
MIN_DIFFERING = 6
"""Rows that must differ, all in one direction, before a difference is real: five are one by chance in 16 cases."""


def best_of(scores: Sequence[float], k: int) -> float:
    """The expected best score of `k` answers drawn from these, each at most once. For scores of 0 and 1 it is pass@k:
    one minus the share of the draws without a 1."""
    n = len(scores)
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} answers, and there are {n}")
    # The best of a draw is the answer of rank i (from 0, ascending) if the others are among the i below it.
    ways = math.comb(n, k)
    return math.fsum(math.comb(i, k - 1) / ways * score for i, score in enumerate(sorted(scores)) if i >= k - 1)


def pass_sizes(n: int) -> list[int]:
    """The k of pass@k that are reported for `n` answers: powers of two, and n."""
    powers = [1 << exponent for exponent in range(1, n.bit_length()) if 1 << exponent < n]
    return [*powers, n] if n > 1 else []


def bootstrap(values_R: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The band in which the mean over rows lies in 95 of 100 resamples of the rows. It is the same in whichever order
    they come: a run has them as it took them, a file of answers by their number."""
    values = np.sort(np.asarray(values_R, dtype=np.float64))
    generator = np.random.Generator(np.random.PCG64(seed))
    chunk = max(1, MAX_DRAWS // len(values))
    means_B = [
        values[generator.integers(0, len(values), (min(chunk, NUM_RESAMPLES - at), len(values)))].mean(axis=1)
        for at in range(0, NUM_RESAMPLES, chunk)
    ]
    low, high = np.quantile(np.concatenate(means_B), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


class Comparison(NamedTuple):
    """`difference` is the second mean minus the first one, over the same rows. `p` is the share of random signs of the
    rows' differences that give as large a difference."""

    rows: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float
    smallest_real: float
    """About the smallest difference that would be real with so many rows that differ so much."""

    @property
    def is_real(self) -> bool:
        return self.p <= 1 - LEVEL

    @property
    def verdict(self) -> str:
        if not self.is_real:
            return "no real difference"
        return "the second is better" if self.difference > 0 else "the first is better"


def compare(first_R: Sequence[float], second_R: Sequence[float]) -> Comparison:
    """Two evaluations of the same rows."""
    if len(first_R) != len(second_R) or not len(first_R):
        raise ValueError(f"a comparison needs the same rows twice, not {len(first_R)} and {len(second_R)}")
    first, second = np.asarray(first_R, dtype=np.float64), np.asarray(second_R, dtype=np.float64)
    differences_R = second - first
    low, high = bootstrap(differences_R.tolist())
    return Comparison(
        rows=len(first),
        first=float(first.mean()),
        second=float(second.mean()),
        difference=float(differences_R.mean()),
        low=low,
        high=high,
        p=_sign_test(differences_R),
        smallest_real=_smallest_real(differences_R),
    )


def _sign_test(differences_R: NDArray[np.float64]) -> float:
    """Exact for few differing rows, else by random signs."""
    differing = differences_R[differences_R != 0]
    if not len(differing):
        return 1.0
    least = abs(differing.sum()) - 1e-9
    if len(differing) <= MAX_EXACT:
        signs_B = 1 - 2 * ((np.arange(1 << len(differing))[:, None] >> np.arange(len(differing))) & 1)
        return float((np.abs(signs_B @ differing) >= least).mean())
    generator = np.random.Generator(np.random.PCG64(0))
    num_extreme, chunk = 0, max(1, MAX_DRAWS // len(differing))
    for at in range(0, NUM_SIGNS, chunk):
        signs_B = 1 - 2 * generator.integers(0, 2, (min(chunk, NUM_SIGNS - at), len(differing)))
        num_extreme += int((np.abs(signs_B @ differing) >= least).sum())
    return (num_extreme + 1) / (NUM_SIGNS + 1)


def _smallest_real(differences_R: NDArray[np.float64]) -> float:
    sizes = np.abs(differences_R[differences_R != 0])
    usual = float(np.median(sizes)) if len(sizes) else 1.0
    noise = 1.96 * math.sqrt(float(np.square(differences_R).sum()))
    return min(max(noise, MIN_DIFFERING * usual) / len(differences_R), usual)
