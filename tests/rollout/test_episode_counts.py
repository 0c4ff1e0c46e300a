"""Metrics of a group count an episode once, however many samples are trained on for it."""

from collections.abc import Sequence
from typing import Any

import pytest

from areal_like.data.votes import VoteRule
from areal_like.rollout.batches import Batches
from areal_like.rollout.conversation_facts import together
from areal_like.rollout.curriculum.scored_group import scored_group
from areal_like.rollout.decisions import Accept
from areal_like.rollout.evaluation.answer_files import answer_lines
from areal_like.rollout.evaluation.evaluation import Evaluation
from areal_like.rollout.groups import Group, Result, has_spread
from areal_like.rollout.settings import RunLength
from areal_like.rollout.step_metrics import AgentMetrics, batch_metrics, judge_groups
from tests.support.rollout_world import evaluated, facts

MASKS = VoteRule(masks_truncated=True)
LENGTH = RunLength(rows=8, steps_per_epoch=2, rows_per_epoch=8, total_steps=2)
SAMPLES = [
    *(("a", 1.0, "length"), ("a", 1.0, "stop"), ("a", 1.0, "length"), ("a", 1.0, "stop")),
    *(("b", 0.0, "stop"), ("b", 0.0, "stop")),
    ("c", None, "length"),
    ("c", None, "length"),
    ("d", 0.5, "stop"),
]
"""Episode, reward and finish of each sample: four episodes of 4, 2, 2 and 1 samples, two of them cut off."""


def episodes(samples: Sequence[tuple[str, float | None, str]] = SAMPLES, number: int = 0) -> Group:
    made = Group(number=number, row=number, seed=0, n=len({name for name, *_ in samples}))
    made.facts = facts(0, [reward for _, reward, _ in samples])
    for fact, (name, _, finish) in zip(made.facts, samples, strict=True):
        fact |= {"finish": finish, "conversation": ord(name), "metrics": {"depth": float(ord(name) - ord("a"))}}
    return made


def metrics_of(*groups: Group, rule: VoteRule = MASKS) -> dict[str, float]:
    return batch_metrics(Batches(0).form(groups, 1, LENGTH), rule)


def test_metrics_of_a_group_count_an_episode_once():
    group = episodes()
    for fact in group.facts:
        fact["env"] = "maze"
    metrics = metrics_of(group)
    assert (metrics["rollout/answers"], metrics["rollout/samples"]) == (4, 9)
    assert metrics["rollout/truncated_share"] == 2 / 4
    assert (metrics["rollout/answer_tokens_mean"], metrics["rollout/answer_tokens_max"]) == (27 / 4, 12)
    assert (metrics["reward/mean"], metrics["reward/part/part"], metrics["env/maze/reward"]) == (0.5, 0.5, 0.5)
    assert metrics["reward/std"] == pytest.approx(((0.5**2 + 0.5**2) / 3) ** 0.5)
    assert (metrics["reward/answers_without_reward"], metrics["reward/answers_without_vote"]) == (1, 1)
    assert metrics["env/maze/answer_tokens_mean"] == 27 / 4
    agent, _ = AgentMetrics(["depth"]).of(Batches(0).form([group], 1, LENGTH))
    assert agent["rollout/agent/depth/mean"] == (0 + 1 + 2 + 3) / 4


@pytest.mark.parametrize(
    ("finishes", "together_finish"),
    [
        (["length", "stop", "stop"], "length"),
        (["stop", "length", "stop"], "length"),
        (["stop", "stop", "length"], "length"),
        (["stop", "stop", "stop"], "stop"),
        (["stop", "stop", "abort"], "abort"),
    ],
)
def test_an_episode_is_cut_off_if_one_of_its_samples_is(finishes: list[str], together_finish: str):
    group = episodes([("a", 1.0, finish) for finish in finishes])
    assert together(group.facts)["finish"] == together_finish
    assert metrics_of(group)["rollout/truncated_share"] == float(together_finish == "length")


def test_the_verdict_counts_an_episode_once():
    verdict = judge_groups([episodes()], MASKS)
    assert (verdict["answers"], verdict["truncated"], verdict["without_reward"]) == (4, 2, 1)
    assert verdict["text"].endswith("pass@1 0.5, pass@3 1, 2 of 4 answers are cut off")


def test_an_episode_votes_as_in_the_trainer_if_one_of_its_samples_does():
    cut = [("a", 1.0, "stop"), ("a", 1.0, "length"), ("b", 0.0, "length"), ("b", 0.0, "length"), ("c", 0.0, "stop")]
    group = episodes(cut)
    assert (metrics_of(group)["reward/answers_without_vote"], has_spread(group.facts, MASKS)) == (1, True)
    assert metrics_of(group, rule=VoteRule())["reward/answers_without_vote"] == 0
    group.facts[0]["loss_tokens"] = 0
    assert metrics_of(group)["reward/answers_without_vote"] == 2, "one sample has no tokens in the loss, one is masked"


def test_the_samples_of_the_only_episode_left_to_vote_are_no_spread():
    turns = [("a", 1.0, "stop"), ("a", 0.5, "stop"), ("b", 0.0, "length")]
    assert not has_spread(episodes(turns).facts, MASKS)
    assert metrics_of(episodes(turns))["reward/groups_without_spread"] == 1
    assert has_spread(episodes(turns).facts, VoteRule())
    assert has_spread(episodes(turns[:2]).facts, MASKS), "the only episode of its group"


def test_an_episode_has_the_reward_of_its_first_sample_that_has_one():
    metrics = metrics_of(episodes([("a", None, "stop"), ("a", 0.75, "stop"), ("a", 0.5, "stop")]))
    assert (metrics["reward/answers_without_reward"], metrics["reward/min"], metrics["reward/max"]) == (0, 0.75, 0.75)


def test_gates_and_samplers_see_an_episode_once():
    scored = scored_group(0, episodes().facts)
    assert (scored.rewards, scored.answer_tokens) == ((1.0, 0.0, None, 0.5), (12, 6, 6, 3))
    assert scored.truncated == (True, False, True, False)


def test_evaluations_and_their_saved_answers_count_an_episode_once():
    group = episodes([each for each in SAMPLES if each[1] is not None])
    result = Result(group.name, "done", facts=group.facts, texts={"prompt": "", "answers": ["1", "2", "3"]})
    evaluation = Evaluation(evaluated(), 0, [group])
    evaluation.apply(Accept(group, result))
    metrics = evaluation.metrics(0.0)
    assert (metrics["eval/samples"], metrics["eval/truncated_share"]) == (3, 1 / 3)
    assert (metrics["eval/reward"], metrics["eval/pass@3"], metrics["eval/answer_tokens_mean"]) == (0.5, 1, 7)
    lines = list(answer_lines(group, result))
    assert [(line["finish"], line["tokens"]) for line in lines] == [("length", 12), ("stop", 6), ("stop", 3)]
    again = Evaluation(evaluated(), 0, [Group(number=0, row=0, seed=0, n=3)])
    again.restore(lines)
    kept: dict[str, Any] = again.metrics(0.0)
    assert kept == metrics
