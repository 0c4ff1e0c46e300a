"""Several agents of an episode: each is compared with the same one of other episodes; the episode counts once."""

import pytest
import torch

from areal_like.algorithms.normalization import normalize
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.data.votes import VoteRule
from areal_like.rollout.batches import Batches
from areal_like.rollout.groups import Group, has_spread
from areal_like.rollout.settings import RunLength
from areal_like.rollout.step_metrics import batch_metrics, judge_groups
from areal_like.training.batch import TrainingBatch, read_batch
from areal_like.training.batch_advantages import shaped_rewards
from tests.support.rollout_world import facts, grpo

LENGTH = RunLength(rows=8, steps_per_epoch=2, rows_per_epoch=8, total_steps=2)
Run = tuple[int, str, float]
"""Episode, agent and reward."""


def group(*runs: Run, number: int = 0) -> Group:
    made = Group(number=number, row=number, seed=0, n=len({episode for episode, *_ in runs}))
    made.facts = facts(0, [reward for *_, reward in runs])
    seen = list[tuple[int, str]]()
    for fact, (episode, agent, _) in zip(made.facts, runs, strict=True):
        fact |= {"conversation": episode, "agent": agent, "run": seen.count((episode, agent))}
        seen.append((episode, agent))
    return made


def test_each_agent_is_compared_with_the_same_one_of_other_episodes():
    groups = [group((0, "a", 3.0), (0, "b", 1.0), (1, "a", 1.0), (1, "b", 0.0)), group((0, "a", 1.0), number=1)]
    header = Batches(0).form(groups, 1, LENGTH).header(0) | {"shard": []}
    batch = read_batch(header, [])
    assert (batch.groups_A.tolist(), batch.conversations_A) == ([0, 1, 0, 1, 2], None)
    rewards, numbers = torch.from_numpy(batch.rewards_A), torch.from_numpy(batch.groups_A)
    levels = {"mean_level": "group", "mean_leave1out": False, "std_level": None, "std_unbiased": False, "eps": 0.0}
    advantages = normalize(rewards, groups=numbers, **levels)  # type: ignore[arg-type]
    assert advantages.tolist() == [1.0, 0.5, -1.0, -0.5, 0.0]


def trained(*groups: Group) -> TrainingBatch:
    return read_batch(Batches(0).form(list(groups), 1, LENGTH).header(0) | {"shard": []}, [])


def reward_norm(**values: object) -> PPOActorConfig:
    words = ["actor.reward_scaling=1", "actor.reward_bias=0"]
    words += [f"actor.reward_norm.{name}={str(value).lower()}" for name, value in values.items()]
    actor: PPOActorConfig = grpo(*words).actor
    return actor


ALONE = group((0, "a", 3.0), (0, "b", 1.0), (1, "a", 1.0), (2, "a", 1.0), (3, "a", 1.0))


@pytest.mark.parametrize(
    "norm",
    [
        {"mean_level": "group", "mean_leave1out": True, "std_level": "null"},
        {"mean_level": "null", "std_level": "group"},
    ],
)
def test_an_agent_that_has_run_in_a_single_episode_has_nothing_to_be_compared_with(norm: dict[str, object]):
    of_a, of_b, *of_others = shaped_rewards(trained(ALONE), reward_norm(**norm)).tolist()
    assert of_b == 0.0 and of_a > of_others[0] == of_others[1]


def test_the_agents_of_a_group_of_a_single_episode_keep_their_rewards():
    """As a group of one answer does."""
    norm = reward_norm(mean_level="group", mean_leave1out=True, std_level="null")
    batch = trained(ALONE, group((0, "a", 3.0), (0, "b", 1.0), (0, "b", 2.0), number=1))
    assert shaped_rewards(batch, norm).tolist()[5:] == [3.0, 1.0, 2.0]
    assert batch.prompts_A.tolist() == [0] * 5 + [1] * 3 and batch.agents is not None
    assert (batch.agents.names_A, batch.agents.runs_A.tolist()) == (tuple("abaaaabb"), [0] * 7 + [1])


def test_a_batch_without_agents_has_the_groups_of_its_prompts():
    batch = trained(group((0, "", 1.0), (1, "", 0.0)), group((0, "", 1.0), number=1))
    assert (batch.agents, batch.prompts_A.tolist()) == (None, [0, 0, 1])


def test_the_runs_of_an_agent_in_an_episode_have_one_vote():
    batch = read_batch(
        Batches(0).form([group((0, "a", 1.0), (0, "b", 1.0), (0, "b", 0.0), (1, "b", 0.0))], 1, LENGTH).header(0)
        | {"shard": []},
        [],
    )
    assert batch.conversations_A is not None
    assert (batch.groups_A.tolist(), batch.conversations_A.tolist()) == ([0, 1, 1, 1], [0, 1, 1, 2])


def test_metrics_count_an_episode_of_several_agents_once_with_the_mean_of_their_rewards():
    made = group((0, "a", 1.0), (0, "b", 0.0), (0, "b", 1.0), (1, "a", 0.0), (1, "b", 0.0))
    metrics = batch_metrics(Batches(0).form([made], 1, LENGTH), VoteRule())
    assert (metrics["rollout/answers"], metrics["rollout/samples"]) == (2, 5)
    assert (metrics["reward/mean"], metrics["reward/max"]) == (0.375, 0.75), "b has run twice: its mean is 0.5"


@pytest.mark.parametrize(
    ("runs", "differ"),
    [
        ([(0, "a", 1.0), (0, "b", 0.0), (1, "a", 0.0), (1, "b", 1.0)], True),
        ([(0, "a", 1.0), (0, "b", 0.0), (1, "a", 1.0), (1, "b", 0.0)], False),
        ([(0, "a", 1.0), (0, "b", 0.0), (1, "a", 1.0)], False),
        ([(0, "a", 1.0), (0, "b", 0.0)], True),
    ],
    ids=["of_a_sum_that_is_the_same", "of_agents_alone", "an_agent_of_one_episode", "a_single_episode"],
)
def test_rewards_differ_if_those_of_one_agent_do(runs: list[Run], differ: bool):
    assert has_spread(group(*runs).facts, VoteRule()) == differ


def test_the_verdict_sees_that_those_of_one_agent_differ():
    same_sum = group((0, "a", 1.0), (0, "b", 0.0), (1, "a", 0.0), (1, "b", 1.0))
    equal = group((0, "a", 1.0), (0, "b", 0.0), (1, "a", 1.0), (1, "b", 0.0))
    assert [judge_groups([each], VoteRule())["spread"] for each in (same_sum, equal)] == [1, 0]
    assert judge_groups([same_sum], VoteRule())["answers"] == 2
