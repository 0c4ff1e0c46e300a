"""Answers that are masked out of the loss, or have no reward, do not vote in the baseline of their group."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from areal_like.algorithms.aggregation import AGGREGATIONS, denominator, token_weights
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.rollout.trajectory import Trajectory
from areal_like.training.batch import SAMPLER, TrainingBatch, read_batch
from areal_like.training.batch_advantages import mask_truncated, shaped_rewards, token_advantages
from tests.support.rollout_world import grpo
from tests.support.training_controller import batch_frame, trajectory
from tests.support.training_runs import world

PLAIN = ("actor.reward_norm=null", "actor.adv_norm=null", "actor.mask_no_eos_with_zero=false", "actor.kl_ctl=0")
MEAN = ("actor.reward_norm.mean_level=group", "actor.reward_norm.std_level=null")
OTHERS = (*MEAN, "actor.reward_norm.mean_leave1out=true")
MASK_TRUNCATED = "actor.mask_truncated_completions=true"
VOTE = "actor.masked_answers_vote=true"


@cache
def actor_of(*overrides: str) -> PPOActorConfig:
    config: PPOActorConfig = grpo(*PLAIN, *overrides).actor
    return config


class Answer(NamedTuple):
    reward: float
    length: int = 2
    masked: bool = False
    truncated: bool = False
    failed: bool = False


def batch_of(*groups: Sequence[Answer], rank: int = 0, ranks: int = 1) -> TrainingBatch:
    """As the trainer reads it from the controller's message."""
    made: list[list[Trajectory]] = []
    for group in groups:
        made.append([])
        for answer in group:
            sample = trajectory(range(1, answer.length + 2), 1, answer.reward)
            sample.loss_mask *= not answer.masked
            finish, reward = "length" if answer.truncated else "stop", None if answer.failed else answer.reward
            made[-1].append(replace(sample, finish=finish, reward=reward))
    header, blobs = batch_frame(0, made, rank, ranks)
    return read_batch(header, [memoryview(blob) for blob in blobs])


ISSUED = [1.0, 1.0, 0.0, 0.0]
BY_MEAN, BY_OTHERS = [2 / 3, -1 / 3, -1 / 3], [1.0, -0.5, -0.5]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (MEAN, BY_MEAN),
        (OTHERS, BY_OTHERS),
        (("actor.advantage.length_weighted_mean=true",), BY_MEAN),
        (("actor.advantage.leave_one_out=true",), BY_OTHERS),
    ],
)
@pytest.mark.parametrize("kind", ["masked", "truncated", "failed"])
def test_others_are_compared_with_those_that_vote_alone_unlike_areal_and_prime_rl(keys, expected, kind):
    answers = [Answer(reward, **{kind: place == 1}) for place, reward in enumerate(ISSUED)]
    actual = shaped_rewards(batch_of(answers), actor_of(*keys, *([MASK_TRUNCATED] if kind == "truncated" else [])))
    assert np.delete(actual.numpy(), 1).tolist() == pytest.approx(expected)


@pytest.mark.shows("actor.masked_answers_vote")
@pytest.mark.parametrize(("keys", "expected"), [(MEAN, [0.5, -0.5, -0.5]), (OTHERS, [2 / 3, -2 / 3, -2 / 3])])
def test_masked_answers_vote_if_the_key_is_set(keys, expected):
    for kind, key in (("masked", ()), ("truncated", (MASK_TRUNCATED,)), ("failed", ())):
        answers = [Answer(reward, **{kind: place == 1}) for place, reward in enumerate(ISSUED)]
        actual = shaped_rewards(batch_of(answers), actor_of(*keys, *key, VOTE))
        without_it = BY_MEAN if keys is MEAN else BY_OTHERS
        assert np.delete(actual.numpy(), 1).tolist() == pytest.approx(without_it if kind == "failed" else expected)


def test_truncated_answers_that_are_learnt_from_vote():
    answers = [Answer(reward, truncated=place == 1) for place, reward in enumerate(ISSUED)]
    assert shaped_rewards(batch_of(answers), actor_of(*MEAN)).tolist() == [0.5, 0.5, -0.5, -0.5]


@pytest.mark.parametrize("keys", [MEAN, OTHERS, ("actor.reward_norm.std_level=group",)])
def test_a_group_with_one_vote_left_has_no_signal_but_a_single_answer_keeps_its_own(keys):
    left, single = [Answer(3.0), Answer(1.0, masked=True)], [Answer(3.0)]
    voted = [Answer(3.0), Answer(1.0)]
    config = actor_of(*keys)
    actual = shaped_rewards(batch_of(left, single, voted), config)
    assert actual[:2].tolist() == [0, 0]
    assert actual[2:].tolist() == shaped_rewards(batch_of(single, voted), config).tolist()


def test_without_a_baseline_of_groups_one_vote_is_enough():
    groups = [Answer(3.0), Answer(1.0, masked=True)], [Answer(1.0), Answer(5.0)]
    actual = shaped_rewards(batch_of(*groups), actor_of("actor.reward_norm={std_level: null}"))
    assert actual.tolist() == [0, 0, -2, 2]
    assert shaped_rewards(batch_of(*groups), actor_of())[0] == 3


answers = st.builds(Answer, st.sampled_from([0.0, 0.25, 1.0, -2.0, 7.5]), st.integers(1, 4), *[st.booleans()] * 3)
batches = st.lists(st.lists(answers, min_size=1, max_size=5), min_size=1, max_size=4)
LEVELS: list[Any] = list(product((None, "batch", "group"), (False, True), (None, "batch", "group")))


@pytest.mark.parametrize(("mean_level", "leaves_out", "std_level"), LEVELS)
@settings(max_examples=8)
@given(groups=batches, votes=st.booleans(), masks=st.booleans())
def test_normalization_counts_as_a_slow_version_does(mean_level, leaves_out, std_level, groups, votes, masks):
    keys = {"mean_level": mean_level, "std_level": std_level, "mean_leave1out": leaves_out, "eps": 0.1}
    words = [f"actor.reward_norm.{key}={'null' if value is None else value}" for key, value in keys.items()]
    config = actor_of(*words, f"actor.masked_answers_vote={votes}", f"actor.mask_truncated_completions={masks}")
    voting = [
        [
            place
            for place, each in enumerate(group)
            if not each.failed and (votes or not (each.masked or (masks and each.truncated)))
        ]
        for group in groups
    ]
    if "group" in (mean_level, std_level):
        pairs = zip(voting, groups, strict=True)
        voting = [mine if len(mine) > 1 or len(group) == 1 else [] for mine, group in pairs]
    voters = [(number, place) for number, mine in enumerate(voting) for place in mine]

    def peers(level: str, number: int) -> list[tuple[int, int]]:
        return [voter for voter in voters if level == "batch" or voter[0] == number]

    def centred(voter: tuple[int, int]) -> float:
        reward: float = groups[voter[0]][voter[1]].reward
        if mean_level is None:
            return reward
        others = [each for each in peers(mean_level, voter[0]) if not leaves_out or each != voter]
        return reward - (fmean(groups[number][place].reward for number, place in others) if others else 0.0)

    def scale(number: int) -> float:
        if std_level is None:
            return 1.0
        squares = [centred(voter) ** 2 for voter in peers(std_level, number)]
        return math.sqrt(sum(squares) / (len(squares) - 1)) + 0.1 if len(squares) > 1 else 1.1

    expected = [
        centred((number, place)) / scale(number) if (number, place) in voters else 0.0
        for number, group in enumerate(groups)
        for place in range(len(group))
    ]
    assert shaped_rewards(batch_of(*groups), config).tolist() == pytest.approx(expected, abs=1e-5)


KEYS_OF_GROUPS = (
    *({"leave_one_out": True}, {"neg_clipped": True}, {"length_weighted_mean": True, "leave_one_out": True}),
    *({"std_norm": "local"}, {"std_norm": "global"}, {"mean_norm": True}),
)


@pytest.mark.parametrize("keys", KEYS_OF_GROUPS)
@settings(max_examples=15)
@given(groups=batches)
def test_advantages_of_groups_are_those_without_the_answers_that_do_not_vote(keys, groups):
    config = actor_of(*(f"actor.advantage.{key}={value}" for key, value in keys.items()))
    voting = [[each for each in group if not each.masked and not each.failed] for group in groups]
    voting = [mine if len(mine) > 1 or len(group) == 1 else [] for mine, group in zip(voting, groups, strict=True)]
    left = [mine for mine in voting if mine]
    alone = iter(shaped_rewards(batch_of(*left), config).tolist() if left else ())
    expected = [
        next(alone) if mine and not each.masked and not each.failed else 0.0
        for group, mine in zip(groups, voting, strict=True)
        for each in group
    ]
    assert shaped_rewards(batch_of(*groups), config).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@settings(max_examples=8)
@given(groups=batches, ranks=st.integers(2, 3))
def test_the_gradient_is_the_same_however_the_batch_is_cut(aggregation, groups, ranks):
    config = actor_of(*MEAN, MASK_TRUNCATED)

    def gradients(batch: TrainingBatch) -> tuple[dict[int, list[float]], float]:
        """Of the sum of losses, by the number of the sample; and this part of the divisor."""
        mask_truncated(batch)
        sequences = batch.sequences
        advantages = torch.from_numpy(token_advantages(batch, config, world(), sequences.fields[SAMPLER]).advantages)
        mask, ends = torch.from_numpy(sequences.target_mask), torch.from_numpy(np.cumsum([0, *sequences.lengths_N]))
        gradient = -advantages * mask * token_weights(aggregation, mask, ends)
        parts: list[NDArray[np.float32]] = np.split(gradient.numpy(), np.cumsum(sequences.lengths_N)[:-1])
        by_sample = {int(mine): part.tolist() for mine, part in zip(batch.mine_N, parts, strict=False)}
        return by_sample, denominator(aggregation, mask, ends, 10)

    whole, count = gradients(batch_of(*groups))
    cut = [gradients(batch_of(*groups, rank=rank, ranks=ranks)) for rank in range(ranks)]
    assert sum(part for _, part in cut) == count
    assert {sample: values for part, _ in cut for sample, values in part.items()} == whole
