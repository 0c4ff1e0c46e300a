"""The rollout loop in synchronous mode: what is trained on depends only on the seed, not on timing."""

import random
from collections.abc import Iterable
from typing import Any

import pytest

from areal_like.rollout.groups import Lease
from areal_like.rollout.settings import RolloutSettings
from areal_like.rollout.sync_order import MAX_LOSSES
from tests.support.rollout_world import World, clock, evaluated, settings


def ordered(**changes: Any) -> RolloutSettings:
    return settings(**{"synchronous": True, "max_concurrent": 8, "num_servers": 2, **changes})


def order(lease: Lease) -> dict[str, Any]:
    assert lease.slot is not None
    return lease.slot


def keys(leases: Iterable[Lease]) -> set[str]:
    return {order(lease)["key"] for lease in leases}


def test_nothing_is_leased_before_all_servers_have_the_version_of_the_step():
    world = World(ordered())
    world.load(0)
    assert world.lease() == []
    world.load(1)
    assert len(world.lease()) == 4
    world.finish_all()
    world.train()
    world.load(0)
    assert world.lease() == []
    world.load(1)
    assert len(world.lease()) == 4


def test_each_server_gets_its_share_in_order():
    world = World(ordered(num_servers=2, batch_size=5, max_concurrent=5))
    world.load_all()
    leases = world.lease(3, "episodes/0") + world.lease(3, "episodes/1")
    by_server: dict[str, list[Any]] = {}
    for lease in leases:
        by_server.setdefault(lease.server, []).append((lease.group.number, lease.slot))
    assert by_server == {
        "server/0": [(number, {"key": "0.1", "place": place, "of": 3}) for place, number in enumerate((0, 2, 4))],
        "server/1": [(number, {"key": "0.1", "place": place, "of": 2}) for place, number in enumerate((1, 3))],
    }


def test_no_group_of_the_next_step_starts_before_the_step_is_done():
    world = World(ordered())
    world.load_all()
    world.lease()
    world.finish_all()
    assert world.fetch() is not None
    world.published = 1
    world.load_all()
    assert world.lease() == []
    world.train()
    assert keys(world.lease()) == {"1.1"}


def test_a_killed_worker_restarts_the_whole_batch():
    world = World(ordered())
    world.load_all()
    lost, kept = world.lease(2, "episodes/0"), world.lease(2, "episodes/1")
    world.finish(kept[0])
    world.loop.worker_started("episodes/0")
    assert world.loop.lease("episodes/1", 9) == []  # before the servers have stopped what they generate of it
    assert world.loop.order.begin_abort()
    assert not world.loop.order.begin_abort()
    world.loop.order.aborted()
    again = world.lease(100, "episodes/1")
    assert keys(again) == {"0.2"}
    assert [lease.group.number for lease in again] == [0, 1, 2, 3]
    assert [lease.group.seed for lease in again] == [lease.group.seed for lease in lost + kept]
    world.finish(kept[1])
    assert world.loop.leases.take_cancelled("episodes/1") == [kept[1].id]
    assert world.fetch() is None
    world.finish_all()
    assert [group.number for group in world.fetch().groups] == [0, 1, 2, 3]
    assert world.problems() == []


def test_a_batch_waits_for_the_replacement_of_a_killed_server():
    world = World(ordered())
    world.load_all()
    leases = world.lease()
    world.finish(leases[0])
    world.server_dies(1)
    assert world.lease() == []
    world.load_all()
    again = world.lease()
    assert keys(again) == {"0.2"}
    assert len(again) == 4
    world.run()
    assert world.problems() == []


def test_a_server_that_does_not_answer_a_worker_restarts_the_batch():
    world = World(ordered())
    world.load_all()
    lease = world.lease()[0]
    assert world.loop.another_server("episodes/0", lease.id, lease.address) == ""
    world.after()
    assert keys(world.lease()) == {"0.2"}


def test_a_process_that_fails_in_every_retry_ends_the_run():
    world = World(ordered())
    for _ in range(MAX_LOSSES + 1):
        world.load_all()
        assert world.lease()
        world.worker_restarts()
    assert world.loop.failure.startswith("rollout: synchronous batch 0 was generated 11 times")


def test_groups_with_equal_rewards_are_replaced_in_another_batch():
    world = World(ordered(dynamic_sampling=True, max_concurrent=4))
    world.load_all()
    for lease in world.lease():
        world.finish(lease, rewards=[1.0, 1.0] if lease.group.number < 2 else [0.0, 1.0])
    more = world.lease()
    assert keys(more) == {"0w2.1"}
    assert [lease.group.number for lease in more] == [4, 5]
    world.finish_all()
    assert [group.number for group in world.train().groups] == [2, 3, 4, 5]


def test_a_failed_group_is_retried_when_its_batch_is_complete():
    world = World(ordered())
    world.load_all()
    leases = world.lease()
    world.finish(leases[1], "failed", error="boom", error_kind="reward")
    assert world.lease() == []
    world.finish_all()
    again = world.lease()
    assert [lease.id for lease in again] == ["1.2"]
    assert keys(again) == {"0w2.1"}
    world.finish_all()
    assert [group.number for group in world.fetch().groups] == [0, 1, 2, 3]


def test_a_server_error_restarts_the_batch_until_the_group_has_no_retries_left():
    world = World(ordered(request_retries=1))
    world.load_all()
    leases = world.lease()
    world.finish(leases[2], "failed", error="too long", error_kind="server")
    world.leases.clear()
    leases = world.lease()
    assert keys(leases) == {"0.2"}
    world.finish(leases[2], "failed", error="too long", error_kind="server")
    world.finish_all()
    assert [lease.group.number for lease in world.lease()] == [4]
    world.finish_all()
    assert [group.number for group in world.train().groups] == [0, 1, 3, 4]
    assert world.counts()["failed"] == 1


def test_an_evaluation_is_a_separate_phase_before_the_groups_of_a_step():
    world = World(ordered(evaluated=(evaluated(),), max_concurrent=4), rows=8, valid_rows=6)
    world.load_all()
    first = world.lease()
    assert keys(first) == {"eval-0.1"}
    assert len(first) == 4
    world.finish_all()
    assert keys(world.lease()) == {"eval-0w2.1"}
    assert world.lease() == []
    world.finish_all()
    assert [step for step, _ in world.scores] == [0]
    assert keys(world.lease()) == {"0.1"}
    world.run()
    for _ in range(3):
        world.lease()
        world.finish_all()
    assert [step for step, _ in world.scores] == list(range(world.step + 1))
    assert all(values["eval/samples"] == 6 for _, values in world.scores)


def trace(seed: int, interruptions: bool) -> list[tuple[int, list[Any]]]:
    """What is generated and trained on, in a run whose timing and failures come from `seed`."""
    chance = random.Random(seed)
    config = ordered(dynamic_sampling=True, evaluated=(evaluated(clock=clock(freq_steps=2)),), max_concurrent=5)
    world = World(config, rows=9, valid_rows=4)
    record: dict[int, list[Any]] = {}
    for _ in range(3000):
        if isinstance(world.fetch(), str):
            return sorted(record.items())
        world.load_all()
        for lease in world.lease(chance.randint(1, 3), f"episodes/{chance.randint(0, 1)}"):
            place = order(lease)
            key = place["key"].rpartition(".")[0]
            mine = record.setdefault(world.step, [])
            entry = (key, place["place"], place["of"], lease.group.row, lease.group.seed, lease.server)
            if entry not in mine:
                mine.append(entry)
        held = [lease for lease, _ in world.leases.values()]
        for lease in chance.sample(held, min(len(held), chance.randint(0, 4))):
            equal = lease.group.row % 4 == 0  # a row decides its rewards, as weights and seed would
            world.finish(lease, rewards=[1.0, 1.0] if equal else [0.0, 1.0])
        batch = world.train() if chance.random() < 0.5 else None
        if batch is not None and not isinstance(batch, str):
            record.setdefault(batch.step, []).append(tuple(group.number for group in batch.groups))
            if chance.random() < 0.5:
                world.save()
        if interruptions and chance.random() < 0.05:
            accident = chance.choice(["worker", "server", "controller"])
            if accident == "worker":
                world.worker_restarts()
            elif accident == "server":
                world.server_dies()
            else:
                world.begin()
                record = {step: entries for step, entries in record.items() if step < world.step}
    raise AssertionError(f"no end: {world.where()}")


@pytest.mark.parametrize("seed", range(1, 6))
def test_timing_and_faults_do_not_change_generation_or_training(seed):
    expected = [(step, sorted(entries, key=str)) for step, entries in trace(0, interruptions=False)]
    record = [(step, sorted(set(entries), key=str)) for step, entries in trace(seed, interruptions=True)]
    assert [step for step, _ in record] == list(range(len(record)))
    assert record == expected
