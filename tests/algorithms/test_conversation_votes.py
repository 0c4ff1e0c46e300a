"""Baselines count a conversation once, however many samples it has."""

from typing import Any

import pytest
import torch

from areal_like.algorithms.advantages import group_advantages
from areal_like.algorithms.conversation_votes import conversation_sums, conversation_votes
from areal_like.algorithms.normalization import normalize

REWARDS, EPISODES = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.5]), torch.tensor([7, 7, 7, 3, 9])
"""Three conversations of one group; the first has three samples."""
FIRST = torch.tensor([0, 3, 4])
GROUP = torch.zeros(5, dtype=torch.long)
OFF: dict[str, Any] = {
    "length_weighted_mean": False,
    "leave_one_out": False,
    "neg_clipped": False,
    "std_norm": None,
    "mean_norm": False,
}
NORMS = [
    {"mean_level": mean, "mean_leave1out": left, "std_level": std, "std_unbiased": unbiased, "eps": 1e-6}
    for mean, left, std, unbiased in [
        *(("group", False, "group", True), ("group", True, None, False), ("batch", True, "batch", False)),
        ("batch", False, "group", True),
    ]
]


@pytest.mark.parametrize("options", NORMS)
def test_normalization_is_that_of_one_sample_per_conversation(options):
    alone = normalize(REWARDS[FIRST], groups=GROUP[FIRST], **options)
    together = normalize(REWARDS, groups=GROUP, conversations=EPISODES, **options)
    assert together.tolist() == alone[torch.tensor([0, 0, 0, 1, 2])].tolist()
    distinct = normalize(REWARDS, groups=GROUP, conversations=torch.arange(5), **options)
    assert distinct.tolist() == normalize(REWARDS, groups=GROUP, **options).tolist()


@pytest.mark.parametrize(
    "options",
    [{}, {"leave_one_out": True}, {"std_norm": "local"}, {"std_norm": "global"}, {"mean_norm": True}],
)
def test_group_advantages_are_those_of_one_sample_per_conversation(options):
    options, lengths = {**OFF, **options}, torch.ones(5)
    alone = group_advantages(REWARDS[FIRST], GROUP[FIRST], lengths[FIRST], **options)
    together = group_advantages(REWARDS, GROUP, lengths, conversations=EPISODES, **options)
    assert together.tolist() == alone[torch.tensor([0, 0, 0, 1, 2])].tolist()


def test_lengths_of_an_conversation_are_added():
    options = {**OFF, "length_weighted_mean": True, "leave_one_out": True}
    lengths = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    together = group_advantages(REWARDS, GROUP, lengths, conversations=EPISODES, **options)
    alone = group_advantages(REWARDS[FIRST], GROUP[FIRST], torch.tensor([6.0, 4.0, 5.0]), **options)
    assert together.tolist() == pytest.approx(alone[torch.tensor([0, 0, 0, 1, 2])].tolist())


def test_samples_with_rewards_of_their_own_are_compared_with_the_mean_of_their_conversation():
    rewards, conversations = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 0, 1])
    group = torch.zeros(3, dtype=torch.long)
    baseline = (0.5 + 1.0) / 2
    assert group_advantages(rewards, group, torch.ones(3), conversations=conversations, **OFF).tolist() == [
        -baseline,
        1 - baseline,
        1 - baseline,
    ]


def test_only_samples_that_vote_count_in_their_conversation():
    votes = torch.tensor([False, True, True, True, False])
    values = torch.tensor([9.0, 1.0, 2.0, 4.0, 8.0])
    mean, voters = conversation_votes(values, votes, EPISODES)
    assert mean.tolist() == [1.5, 1.5, 1.5, 4.0, 0.0] and voters.tolist() == [False, True, False, True, False]
    assert conversation_sums(values, EPISODES).tolist() == [12.0, 12.0, 12.0, 4.0, 8.0]
