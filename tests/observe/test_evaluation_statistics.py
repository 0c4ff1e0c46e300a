"""pass@k against all draws, bands, and the paired comparison against all signs."""

import math
from itertools import combinations, product
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_like.observe.evaluation_statistics import best_of, bootstrap, compare, pass_sizes

SCORES = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=7)


@given(SCORES, st.integers(1, 7))
def test_the_best_of_k_is_the_mean_over_all_draws_of_k(scores: list[float], k: int) -> None:
    if k > len(scores):
        with pytest.raises(ValueError, match=rf"pass@{k} needs at least {k} answers"):
            best_of(scores, k)
        return
    assert best_of(scores, k) == pytest.approx(fmean(max(draw) for draw in combinations(scores, k)))


@pytest.mark.parametrize("right", range(9))
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_for_right_and_wrong_answers_it_is_the_closed_form_of_pass_at_k(right: int, k: int) -> None:
    scores = [1.0] * right + [0.0] * (8 - right)
    assert best_of(scores, k) == pytest.approx(1 - math.comb(8 - right, k) / math.comb(8, k))


@pytest.mark.parametrize(("n", "sizes"), [(1, []), (2, [2]), (3, [2, 3]), (4, [2, 4]), (12, [2, 4, 8, 12])])
def test_the_reported_sizes_are_powers_of_two_and_n(n: int, sizes: list[int]) -> None:
    assert pass_sizes(n) == sizes


def test_a_band_is_about_that_of_the_normal_distribution_and_the_same_each_time() -> None:
    values = np.random.Generator(np.random.PCG64(3)).integers(0, 2, 400).tolist()
    low, high = bootstrap(values)
    expected = 1.96 * np.std(values) / math.sqrt(400)
    assert (low, high) == bootstrap(values)
    assert (high - low) / 2 == pytest.approx(expected, rel=0.15)
    assert low < fmean(values) < high
    assert bootstrap([0.5] * 7) == (0.5, 0.5)


def test_a_band_does_not_depend_on_the_order_of_the_rows() -> None:
    values = [0.0, 0.25, 1.0, 1.0, 0.5, 0.0, 0.0]
    assert bootstrap(values) == bootstrap(values[::-1]) == bootstrap(sorted(values))


def test_bands_hold_the_mean_in_about_95_of_100_samples() -> None:
    generator = np.random.Generator(np.random.PCG64(11))
    bands = [bootstrap(generator.integers(0, 2, 100).tolist()) for _ in range(200)]
    assert 0.88 <= fmean(low <= 0.5 <= high for low, high in bands) <= 0.99


def brute_force_p(differences: list[float]) -> float:
    flips = product((1, -1), repeat=len(differences))
    sums = [abs(sum(sign * each for sign, each in zip(signs, differences, strict=True))) for signs in flips]
    return fmean(each >= abs(sum(differences)) - 1e-9 for each in sums)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=1, max_size=8))
def test_the_share_of_signs_is_exact_for_few_rows(differences: list[float]) -> None:
    found = compare([0.0] * len(differences), differences)
    assert found.p == pytest.approx(brute_force_p(differences))


@pytest.mark.parametrize(
    ("better", "worse", "rows", "is_real"),
    [(6, 0, 100, True), (5, 0, 100, False), (0, 0, 100, False), (40, 10, 200, True), (30, 20, 200, False)],
)
def test_a_difference_is_real_from_about_the_smallest_real_one(
    better: int, worse: int, rows: int, is_real: bool
) -> None:
    first = [0.0] * better + [1.0] * worse + [1.0] * (rows - better - worse)
    second = [1.0] * better + [0.0] * worse + [1.0] * (rows - better - worse)
    found = compare(first, second)
    assert found.difference == pytest.approx((better - worse) / rows)
    assert (found.is_real, found.verdict) == (is_real, "the second is better" if is_real else "no real difference")
    assert (abs(found.difference) >= found.smallest_real) == is_real
    assert compare(second, first).verdict == ("the first is better" if is_real else "no real difference")


def test_only_the_same_rows_are_compared() -> None:
    with pytest.raises(ValueError, match="the same rows twice, not 2 and 1"):
        compare([0.0, 1.0], [1.0])
