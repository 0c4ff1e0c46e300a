"""Normalization of rewards and advantages: AReaL's numbers, except where they are wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.key_defaults import normalize

REWARDS = [1.0, 0, 0, 1, 1, 1, 0, 0]
SPREAD = [0.0, 1, 2, 3, 10, 20]
SIGNS = [1.0, -1, -1, 1, 1, 1, -1, -1]


def consecutive_groups(num_rows: int, group_size: int) -> Tensor:
    """Of rows that lie group by group; the last one may be smaller."""
    return torch.arange(num_rows) // group_size


def close(actual: Tensor, expected: object, tolerance: float = 1e-5) -> None:
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float32), atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 0.935397),
        ({"std_unbiased": False}, 0.99998),
        ({"mean_level": "group", "std_level": "group"}, 0.86601),
        ({"mean_level": "group", "std_level": None}, 0.5),
        ({"mean_level": "group", "mean_leave1out": True, "std_level": None}, 0.666667),
        ({"mean_level": "group", "std_level": "batch"}, 0.935397),
    ],
)
def test_rewards_of_zero_and_one_give_the_known_numbers(options, size) -> None:
    actual = normalize(torch.tensor(REWARDS), groups=consecutive_groups(8, 4), **options)
    close(actual, [sign * size for sign in SIGNS])


@pytest.mark.parametrize(
    ("std_level", "expected"),
    [
        ("group", [-0.99999, 0, 0.99999, -0.936328, -0.117041, 1.053369]),
        ("batch", [-0.183803, 0, 0.183803, -1.470427, -0.183803, 1.654230]),
    ],
)
def test_groups_with_spread_give_the_known_numbers(std_level, expected) -> None:
    actual = normalize(torch.tensor(SPREAD), groups=consecutive_groups(6, 3), mean_level="group", std_level=std_level)
    close(actual, expected)


def test_masked_values_do_not_count_and_become_zero() -> None:
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    mask = torch.tensor([[0, 1, 1], [1, 1, 0]])
    expected = [[0, -1.161886, -0.387295], [0.387295, 1.161886, 0]]
    close(normalize(x, mask=mask), expected)
    x[0, 0], x[1, 2] = torch.nan, torch.inf
    close(normalize(x, mask=mask), expected)


def test_leave_one_out_over_the_batch_takes_the_mean_of_the_others() -> None:
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    assert normalize(x, mean_leave1out=True, std_level=None)[0, 0] == -3
    assert normalize(torch.tensor([5.0]), mean_leave1out=True, std_level=None).item() == 5


@pytest.mark.parametrize("leave1out", [False, True])
@pytest.mark.parametrize("unbiased", [False, True])
def test_groups_of_one_are_no_error_unlike_areal(leave1out, unbiased) -> None:
    options: dict[str, Any] = {
        "mean_level": "group",
        "std_level": "group",
        "mean_leave1out": leave1out,
        "std_unbiased": unbiased,
    }
    actual = normalize(torch.tensor([1.0, 0, 3]), groups=consecutive_groups(3, 1), **options)
    assert actual.isfinite().all()
    if not leave1out:
        close(actual, [0, 0, 0])


def test_a_smaller_last_group_is_not_divided_by_eps_unlike_areal() -> None:
    options: dict[str, Any] = {"mean_level": "group", "std_level": "group"}
    actual = normalize(torch.tensor([1.0, 0, 1]), groups=consecutive_groups(3, 2), **options)
    close(actual, [0.707097, -0.707097, 0])
    actual = normalize(torch.tensor([1.0, 0, 1, 5, 7]), groups=consecutive_groups(5, 3), **options)
    close(actual[3:], [-0.707102, 0.707102])


def test_a_fully_masked_batch_becomes_zero_unlike_areal() -> None:
    close(normalize(torch.tensor([1.0, torch.nan]), mask=torch.zeros(2)), [0, 0])


@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_equal_rewards_give_exactly_zero(eps) -> None:
    rewards = torch.tensor([0.7] * 3 + [0.1] * 7)
    groups = torch.tensor([0] * 3 + [1] * 7)
    for leave1out in (False, True):
        actual = normalize(
            rewards, groups=groups, mean_level="group", std_level="group", eps=eps, mean_leave1out=leave1out
        )
        assert (actual == 0).all()


def test_the_order_of_rows_and_the_numbers_of_groups_do_not_matter() -> None:
    rewards, groups = torch.randn(12), torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2])
    options: dict[str, Any] = {"mean_level": "group", "std_level": "group"}
    straight = normalize(rewards, groups=groups, **options)
    order = torch.randperm(12)
    torch.testing.assert_close(normalize(rewards[order], groups=groups[order] * 70 + 512, **options), straight[order])


def test_groups_of_rows_hold_for_every_value_of_a_row() -> None:
    x = torch.tensor([[1.0, 3], [5, 7], [2, 2]])
    actual = normalize(x, groups=torch.tensor([0, 0, 1]), mean_level="group", std_level=None)
    close(actual, [[-3, -1], [1, 3], [0, 0]])


@pytest.mark.parametrize("mean_level", ["batch", "group", None])
@pytest.mark.parametrize("std_level", ["batch", "group", None])
def test_ranks_that_add_up_their_sums_equal_one_rank(mean_level, std_level) -> None:
    x, groups = torch.randn(20), torch.randint(3, (20,))
    mask = torch.rand(20) < 0.8
    options: dict[str, Any] = {
        "mean_level": mean_level,
        "std_level": std_level,
        "mean_leave1out": mean_level == "group",
    }
    whole = normalize(x, mask=mask, groups=groups, **options)
    halves = [slice(0, 7), slice(7, 20)]

    # The second rank's sums are replayed for the first, as an all-reduce would give them.
    def parts_of(part: slice, others: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        recorded: list[Tensor] = []

        def reduce(value: Tensor) -> Tensor:
            recorded.append(value.clone())
            at = len(recorded) - 1
            return value + others[at] if at < len(others) else value

        actual = normalize(x[part], mask=mask[part], groups=groups[part], num_groups=3, reduce=reduce, **options)
        return actual, recorded

    sums: tuple[list[Tensor], list[Tensor]] = ([], [])
    for _ in range(6):  # a later sum depends on an earlier one: repeated until all are right
        sums = (parts_of(halves[0], sums[1])[1], parts_of(halves[1], sums[0])[1])
    actual = torch.cat([parts_of(halves[0], sums[1])[0], parts_of(halves[1], sums[0])[0]])
    torch.testing.assert_close(actual, whole)


@pytest.mark.parametrize("options", [{"mean_level": "prompt"}, {"std_level": "token"}])
def test_an_unknown_level_is_refused(options) -> None:
    with pytest.raises(ValueError, match=r"_level: '\w+' is not one of batch, group and null"):
        normalize(torch.ones(2), **options)


def test_group_levels_without_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="groups: "):
        normalize(torch.ones(2), mean_level="group")
    with pytest.raises(ValueError, match="num_groups: "):
        normalize(torch.ones(2), mean_level="group", groups=torch.zeros(2), reduce=lambda x: x)
