"""MaxRL's advantages against a slow version."""

from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_like.algorithms.advantages import group_advantages
from tests.support.every_loss import share
from tests.support.planning import loaded

answers = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0, 0.25, -2.0])), min_size=1, max_size=12)
"""Group and reward of each answer."""


def slow(rewards: list[float], groups: list[int]) -> list[float]:
    advantages = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [each for each, other in zip(rewards, groups, strict=True) if other == group]
        mean = sum(members) / len(members)
        advantages.append((reward - mean) / mean if mean > 0 else 0.0)
    return advantages


@share(6)
@given(drawn=answers)
def test_maxrl_equals_a_slow_version(drawn) -> None:
    groups, rewards = map(list, zip(*drawn, strict=True))
    options = asdict(loaded("grpo", "algorithm=maxrl").config.actor.advantage)
    actual = group_advantages(torch.tensor(rewards), torch.tensor(groups), torch.ones(len(drawn)), **options)
    assert actual.tolist() == pytest.approx(slow(rewards, groups), rel=1e-5, abs=1e-6)


def test_one_success_of_eight_counts_seven_times_as_much_as_each_failure() -> None:
    options = asdict(loaded("grpo", "algorithm=maxrl").config.actor.advantage)
    actual = group_advantages(torch.tensor([1.0] + [0.0] * 7), torch.zeros(8), torch.ones(8), **options)
    assert actual.tolist() == pytest.approx([7.0] + [-1.0] * 7)
