"""Packing plans: known numbers, limits, completeness, no torch."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_like.data.packing import balance, first_fit_decreasing, group_neighbours, micro_batches, minibatches

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def as_sets(plan: list[list[int]]) -> set[frozenset[int]]:
    return {frozenset(group) for group in plan}


@pytest.mark.parametrize(
    ("sizes", "capacity", "min_groups", "expected"),
    [
        ([5, 4, 3, 2, 1], 10, 1, [{0, 1}, {2, 3, 4}]),
        ([5, 4, 3, 2, 1], 6, 1, [{0}, {1, 4}, {2, 3}]),
        ([5, 4, 3, 2, 1], 100, 2, [{0, 3, 4}, {1, 2}]),
        ([7, 6, 5, 4, 3, 2, 1], 12, 3, [{0, 5, 6}, {1, 4}, {2, 3}]),
        ([100, 90, 80, 70, 60, 50, 40, 30], 200, 1, [{0, 1}, {2, 3, 7}, {4, 5, 6}]),
        ([3, 1, 2], None, 1, [{0, 1, 2}]),
        ([], 10, 0, []),
    ],
)
def test_first_fit_decreasing_gives_the_known_groups(sizes, capacity, min_groups, expected) -> None:
    assert as_sets(first_fit_decreasing(sizes, capacity, min_groups)) == {frozenset(group) for group in expected}


@pytest.mark.parametrize(("sizes", "capacity", "min_groups"), [([11], 10, 1), ([1, 2], 10, 3)])
def test_first_fit_decreasing_refuses_impossible_limits(sizes, capacity, min_groups) -> None:
    with pytest.raises(ValueError, match=r"does not fit|cannot fill"):
        first_fit_decreasing(sizes, capacity, min_groups)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(LENGTHS, st.integers(1, 8), st.integers(1, 4), st.integers(60, 200))
def test_micro_batches_hold_every_sequence_once_fit_and_keep_neighbours_together(
    lengths, n_mbs, granularity, max_tokens
) -> None:
    units = [row // granularity for row in range(len(lengths))]
    expected = {"n_mbs": n_mbs, "units": units, "max_tokens": max_tokens * granularity}
    plan = micro_batches(lengths, **expected)
    assert sorted(row for group in plan for row in group) == list(range(len(lengths)))
    assert all(sum(lengths[row] for row in group) <= max_tokens * granularity for group in plan)
    assert min(n_mbs, units[-1] + 1) <= len(plan)
    assert all(plan)
    where = {row: number for number, group in enumerate(plan) for row in group}
    assert all(where[row] == where[row - row % granularity] for row in range(len(lengths)))
    assert plan == micro_batches(lengths, **expected)


def test_the_rest_of_a_pair_is_a_unit_too() -> None:
    """Of pairs (0, 1), (2, 3), (4, 5) the rows 1 and 2 were left out."""
    assert micro_batches([9, 8, 7, 6], n_mbs=3, units=[0, 1, 2, 2]) == [[2, 3], [0], [1]]
    assert group_neighbours([0, 1, 2, 2]) == [[0], [1], [2, 3]]


def test_without_a_number_there_are_as_few_micro_batches_as_fit() -> None:
    assert micro_batches([5, 4, 3], n_mbs=None) == [[0, 1, 2]]
    assert micro_batches([5, 4, 3], n_mbs=9) == [[0], [1], [2]]
    assert micro_batches([], n_mbs=4) == []


def test_a_sequence_that_does_not_fit_is_refused_by_the_key_that_limits_it() -> None:
    with pytest.raises(
        ValueError, match=r"^actor\.mb_spec\.max_tokens_per_mb: sequence 1 has 600 tokens, more than the"
    ):
        micro_batches([5, 600, 7], max_tokens=512)
    with pytest.raises(ValueError, match=r"^critic\.mb_spec\.max_tokens_per_mb: sequences 2 to 3 together have 607"):
        micro_batches([5, 6, 600, 7], max_tokens=512, units=[0, 0, 1, 1], key="critic.mb_spec.max_tokens_per_mb")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(LENGTHS, st.integers(1, 9))
def test_ranks_get_a_similar_number_of_tokens(lengths, ranks) -> None:
    parts = balance(lengths, ranks)
    assert len(parts) == ranks
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    loads = [sum(lengths[row] for row in part) for part in parts]
    assert max(loads) - min(loads) <= max(lengths)


def test_a_batch_is_split_into_minibatches_of_similar_size() -> None:
    assert minibatches([5, 3, 4, 4], 1) == [[0, 1, 2, 3]]
    assert [sum([5, 3, 4, 4][row] for row in part) for part in minibatches([5, 3, 4, 4], 2)] == [8, 8]
    assert minibatches([5, 3], 4) == [[0], [1]]


def test_pairs_stay_together_among_ranks_and_updates() -> None:
    assert balance([1, 9, 2, 2, 5, 1], 2, granularity=2) == [[0, 1], [2, 3, 4, 5]]
    assert minibatches([1, 9, 2, 2, 5, 1], 2, granularity=2) == [[0, 1], [2, 3, 4, 5]]
    assert minibatches([1, 9], 4, granularity=2) == [[0, 1]]


def test_planning_needs_no_torch() -> None:
    code = "import sys, areal_like.data.packing as p; p.balance([1], 1); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
