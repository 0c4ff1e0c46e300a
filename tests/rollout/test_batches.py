"""The batch of a step, and how it is divided over ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_like.data.votes import VoteRule
from areal_like.process.errors import HttpError
from areal_like.rollout.batches import Batches, balance, without_equal
from areal_like.rollout.groups import Group
from areal_like.rollout.settings import RunLength
from areal_like.rollout.step_metrics import batch_metrics
from tests.support.rollout_world import World, facts, settings

LENGTH = RunLength(rows=20, steps_per_epoch=5, rows_per_epoch=20, total_steps=9)


def group(number: int, rewards: list[float | None], length: int = 3) -> Group:
    made = Group(number=number, row=number, seed=number, n=len(rewards))
    made.facts, made.blob = facts(0, rewards, generated=length), f"blob {number}".encode()
    return made


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_every_group_has_one_rank_and_ranks_have_equally_many_groups(tokens, world):
    ranks = balance(tokens, world)
    counts = [ranks.count(rank) for rank in range(world)]
    assert len(ranks) == len(tokens)
    assert max(counts) - min(counts) <= 1
    assert balance(tokens, world) == ranks


def test_ranks_get_about_equally_many_tokens():
    tokens = [100, 90, 80, 70, 60, 50, 40, 30]
    ranks = balance(tokens, 2)
    load = [sum(t for t, rank in zip(tokens, ranks, strict=True) if rank == target) for target in range(2)]
    assert abs(load[0] - load[1]) <= 10
    assert ranks.count(0) == 4


def test_each_rank_gets_its_groups_whole_and_all_get_the_table():
    batches = Batches(0)
    batch = batches.form([group(number, [0.0, 1.0], length=number) for number in range(5)], 2, LENGTH)
    headers = [batch.header(rank) for rank in range(2)]
    assert headers[0]["samples"] == headers[1]["samples"]
    assert [(s["group"], s["sample"]) for s in headers[0]["samples"]] == [(g, s) for g in range(5) for s in range(2)]
    assert all((header["total_steps"], header["steps_per_epoch"]) == (9, 5) for header in headers)
    assert sorted(headers[0]["shard"] + headers[1]["shard"]) == list(range(10))
    for rank, header in enumerate(headers):
        mine = [header["samples"][index] for index in header["shard"]]
        assert all(sample["rank"] == rank for sample in mine)
        numbers = list(dict.fromkeys(sample["group"] for sample in mine))
        assert batch.blobs(rank) == [f"blob {number}".encode() for number in numbers]
    sample = headers[0]["samples"][0]
    assert {"reward", "rewards", "length", "generated", "loss_tokens", "finish", "version_min"} <= set(sample)


def test_a_batch_can_be_fetched_until_done_and_steps_are_in_order():
    batches = Batches(3)
    assert batches.get(3, 1) is None
    with pytest.raises(HttpError, match="comes after batch 3"):
        batches.get(4, 1)
    batch = batches.form([group(0, [1.0])], 1, LENGTH)
    assert batches.get(3, 1) is batch
    with pytest.raises(HttpError, match="formed for 1 ranks"):
        batches.get(3, 2)
    with pytest.raises(HttpError, match="step 4 cannot be done"):
        batches.done(4)
    assert batches.done(3) is batch
    assert batches.done(3) is None
    with pytest.raises(HttpError, match="already trained on"):
        batches.get(3, 1)


def test_groups_without_spread_are_omitted_unless_there_are_no_others():
    filters = settings(dynamic_sampling=True, refill=False)
    equal, spread = group(0, [1.0, 1.0]), group(1, [1.0, 0.0])
    assert without_equal([equal, spread], filters) == [spread]
    assert without_equal([equal, equal], filters) == [equal, equal]
    assert without_equal([equal, group(0, [1.0])], filters)[0].number == 0
    for unfiltered in (settings(), settings(dynamic_sampling=True)):
        assert without_equal([equal, spread], unfiltered) == [equal, spread]


def test_a_batch_has_the_oldest_groups_in_any_order_of_completion():
    world = World(settings(max_staleness=2, max_concurrent=20))
    world.load()
    leases = world.lease()
    for lease in reversed(leases[1:7]):
        world.finish(lease)
    assert [g.number for g in world.fetch().groups] == [1, 2, 3, 4]
    assert world.fetch() is world.fetch()
    assert [s["group"] for s in world.fetch().samples] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_batch_is_available_only_when_full():
    world = World(settings())
    world.load()
    leases = world.lease()
    for lease in leases[:3]:
        world.finish(lease)
    assert world.fetch() is None
    world.finish(leases[3])
    assert world.fetch() is not None


def test_stopping_still_gives_started_batches_to_all_ranks():
    world = World(settings(max_concurrent=20))
    world.load()
    world.lease()
    world.finish_all()
    first = world.loop.batch(0, 0, 2)
    world.loop.stopping = "stopped as asked"
    assert world.loop.batch(0, 1, 2) is first
    assert world.loop.batch(1, 0, 2) == "stopped as asked"
    assert world.lease() == []


def test_after_the_last_step_the_trainer_ends():
    world = World(settings(total_epochs=1))
    assert len(world.run()) == 2
    assert world.fetch(2) == "the run is complete: 2 steps"
    assert world.lease() == []
    assert world.counts() == {"trained": 8}  # nothing was generated that no step could take


def test_answers_without_a_reward_or_a_vote_are_counted_and_in_no_mean():
    half, masked, left = group(0, [1.0, None, 0.0]), group(1, [4.0, 3.0]), group(2, [None, 1.0])
    masked.facts[0]["loss_tokens"] = 0
    batch = Batches(0).form([half, masked, left], 1, LENGTH)
    metrics = batch_metrics(batch, VoteRule())
    assert (metrics["reward/answers_without_reward"], metrics["reward/answers_without_vote"]) == (2, 3)
    assert (metrics["reward/mean"], metrics["reward/part/part"]) == (1.8, 1.8)
    assert metrics["reward/groups_without_spread"] == 2
    assert batch_metrics(batch, VoteRule(masked_vote=True))["reward/groups_without_spread"] == 1
