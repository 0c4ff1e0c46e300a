"""The samples of a conversation count as one answer, from the worker to the metrics."""

import numpy as np

from areal_like.data.votes import VoteRule, comparable
from areal_like.rollout.batches import Batches
from areal_like.rollout.conversation_facts import by_conversation, conversation_numbers
from areal_like.rollout.groups import Group, has_spread
from areal_like.rollout.settings import RunLength
from areal_like.rollout.step_metrics import batch_metrics
from areal_like.training.batch import read_batch
from tests.support.rollout_world import facts

TALK = {"turns": 3.0, "template_breaks": 2.0}


def group(number: int, rewards: list[float], conversations: list[int | None]) -> Group:
    made = Group(number=number, row=number, seed=0, n=len(set(conversations)))
    made.facts = facts(0, rewards)
    for fact, conversation in zip(made.facts, conversations, strict=True):
        if conversation is not None:
            fact |= {
                "conversation": conversation,
                "metrics": TALK if conversation == 0 else {"turns": 1.0, "template_breaks": 0.0},
            }
    return made


LENGTH = RunLength(rows=8, steps_per_epoch=2, rows_per_epoch=8, total_steps=2)


def test_metrics_count_a_conversation_once():
    talk = group(0, [1.0, 1.0, 1.0, 0.0], [0, 0, 0, 1])
    metrics = batch_metrics(Batches(0).form([talk], 1, LENGTH), VoteRule())
    assert (metrics["rollout/samples"], metrics["rollout/conversations"], metrics["reward/mean"]) == (4, 2, 0.5)
    assert (metrics["rollout/turns_mean"], metrics["rollout/turns_max"]) == (2, 3)
    assert metrics["rollout/template_breaks"] == 2
    assert metrics["rollout/turn_tokens_mean"] == sum(fact["generated"] for fact in talk.facts) / (3 + 1)
    generated = sum(fact["generated"] for fact in talk.facts[:3])
    assert metrics["rollout/answer_tokens_max"] == generated == by_conversation(talk.facts)[0]["generated"]
    record = talk.record()
    assert record["conversations"] == [0, 0, 0, 1] and record["template_breaks"] == [2, 2, 2, 0]


def test_calls_of_tools_are_means_over_conversations_that_may_call():
    talk = group(0, [1.0, 0.0], [0, 1])
    talk.facts[0]["metrics"] = TALK | {"tool_calls": 3.0, "tool_errors": 1.0}
    talk.facts[1]["metrics"] = TALK | {"tool_calls": 0.0, "tool_errors": 0.0}
    metrics = batch_metrics(Batches(0).form([talk], 1, LENGTH), VoteRule())
    assert (metrics["rollout/tool_calls_mean"], metrics["rollout/tool_errors_mean"]) == (1.5, 0.5)


def test_groups_without_conversations_have_the_metrics_and_the_ledger_that_they_had():
    plain = group(0, [1.0, 0.0], [None, None])
    metrics = batch_metrics(Batches(0).form([plain], 1, LENGTH), VoteRule())
    assert not [name for name in metrics if "turns" in name or "breaks" in name or "conversations" in name]
    assert not {"conversations", "template_breaks"} & set(plain.record())
    assert by_conversation(plain.facts) == plain.facts


def test_numbers_given_and_not_given_are_different_conversations():
    made = group(0, [1.0] * 4, [1, None, 1, None])
    assert conversation_numbers(made.facts) == [0, 1, 0, 2]


def test_a_group_of_one_conversation_gives_a_gradient_as_one_of_one_sample_does():
    assert has_spread(group(0, [1.0, 1.0], [0, 0]).facts, VoteRule())
    assert not has_spread(group(0, [1.0, 1.0], [0, 1]).facts, VoteRule())
    assert has_spread(group(0, [1.0, 0.5, 1.0], [0, 0, 1]).facts, VoteRule())


def test_a_single_conversation_left_of_several_has_nothing_to_be_compared_with():
    votes, groups = np.array([True, True, False]), np.zeros(3, np.int64)
    assert comparable(votes, groups, np.array([0, 0, 1])).tolist() == [False] * 3
    assert comparable(votes, groups, np.array([0, 1, 2])).tolist() == [True, True, False]
    assert comparable(np.array([True, True]), groups[:2], np.array([0, 0])).tolist() == [True, True]


def test_the_trainer_knows_the_conversations_of_a_batch():
    def conversations(*groups: Group) -> list[int] | None:
        for each in groups:
            each.blob = b""
        header = Batches(0).form(list(groups), 2, LENGTH).header(0)
        header["shard"] = []
        found = read_batch(header, []).conversations_A
        return None if found is None else found.tolist()

    assert conversations(group(0, [1.0, 0.0, 0.0], [0, 0, 1]), group(1, [1.0, 0.0], [0, 0])) == [0, 0, 1, 2, 2]
    assert conversations(group(0, [1.0, 0.0], [0, 1]), group(1, [1.0], [None])) is None
