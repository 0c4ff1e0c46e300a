"""Rows of several sources are mixed in rotation, by draws, or one after the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_like.data.mixing import ALL_EXHAUSTED, FIRST_EXHAUSTED, by_draws, concatenated, in_rotation

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=4)
STOPPING = st.sampled_from((FIRST_EXHAUSTED, ALL_EXHAUSTED))


def pairs(mix):
    return list(zip(*(each.tolist() for each in mix), strict=True))


def test_two_rows_and_one_row_in_rotation() -> None:
    assert pairs(in_rotation([2, 1], FIRST_EXHAUSTED)) == [(0, 0), (1, 0)]
    assert pairs(in_rotation([2, 1], ALL_EXHAUSTED)) == [(0, 0), (1, 0), (0, 1), (1, 0)]


def test_concatenated_rows_follow_one_another() -> None:
    assert pairs(concatenated([2, 1])) == [(0, 0), (0, 1), (1, 0)]


def drawn_one_by_one(sizes, frequencies, stopping, seed):
    """Slow: draws until the first or every source is exhausted, and begins exhausted ones again."""
    shares = np.asarray(frequencies) / np.sum(frequencies)
    mix: list[tuple[int, int]] = []
    draws = np.random.default_rng(seed)
    used, exhausted = [0] * len(sizes), [False] * len(sizes)
    while True:
        for source in draws.choice(len(sizes), size=1000, p=shares).tolist():
            if (any if stopping == FIRST_EXHAUSTED else all)(exhausted):
                return mix
            mix.append((source, used[source]))
            used[source] += 1
            if used[source] == sizes[source]:
                exhausted[source], used[source] = True, 0


@given(SIZES, STOPPING, st.integers(0, 9), st.data())
def test_draws_equal_those_of_a_slow_version(sizes, stopping, seed, data) -> None:
    frequencies = data.draw(st.lists(st.floats(0.2, 3), min_size=len(sizes), max_size=len(sizes)))
    assert pairs(by_draws(sizes, frequencies, stopping, seed)) == drawn_one_by_one(sizes, frequencies, stopping, seed)


@given(SIZES)
def test_all_exhausted_uses_every_row_of_each_source(sizes) -> None:
    every = {(source, number) for source, size in enumerate(sizes) for number in range(size)}
    assert set(pairs(in_rotation(sizes, ALL_EXHAUSTED))) == every
    assert set(pairs(by_draws(sizes, [1.0] * len(sizes), ALL_EXHAUSTED, 1))) == every


@given(SIZES, STOPPING)
def test_rotation_takes_the_sources_in_turn(sizes, stopping) -> None:
    mix = pairs(in_rotation(sizes, stopping))
    assert [source for source, _ in mix] == [at % len(sizes) for at in range(len(mix))]


def test_draws_follow_the_frequencies() -> None:
    sources, _ = by_draws([5000, 5000], [3, 1], ALL_EXHAUSTED, 7)
    assert np.mean(sources == 0) == pytest.approx(0.75, abs=0.02)
