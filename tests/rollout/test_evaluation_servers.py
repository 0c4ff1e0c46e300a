"""Servers for evaluations alone: training does not wait for them, and they keep the weights that they evaluate."""

import asyncio
from pathlib import Path

import pytest

from tests.support.controller_world import make_run, world_of
from tests.support.rollout_world import World, clock, evaluated, settings


def world_with(synchronous: bool, **changes: object) -> World:
    rows = evaluated(clock=clock(freq_steps=2))
    return World(
        settings(evaluated=(rows,), num_evaluators=1, synchronous=synchronous, **changes), rows=16, valid_rows=3
    )


@pytest.mark.parametrize("synchronous", [True, False])
def test_training_goes_on_while_other_servers_keep_the_weights_that_they_evaluate(synchronous: bool) -> None:
    world = world_with(synchronous)
    world.load_all()
    leases = world.lease()
    evaluating = [lease for lease in leases if lease.group.evaluation is not None]
    assert {lease.server for lease in evaluating} == {"server/1"} and len(evaluating) == 3
    assert {lease.server for lease in leases if lease not in evaluating} == {"server/0"}
    for _ in range(2):
        for lease, _ in list(world.leases.values()):
            if lease not in evaluating:
                world.finish(lease)
        assert world.train() is not None
        world.load_all()
        world.lease()
    pool = world.loop.server_pool
    assert (world.step, pool.served_version, pool.evaluators.served_version) == (2, 2, 0)
    world.finish_all()
    (event,) = [event for event in world.events if event["event"] == "evaluated"]
    assert (event["versions"], event["servers"]) == ([0, 0], ["server/1"])
    world.load_all()
    assert pool.evaluators.served_version == 2, "the weights of the next evaluation"


@pytest.mark.parametrize("synchronous", [True, False])
def test_training_begins_once_servers_that_start_late_can_evaluate_the_first_weights(synchronous: bool) -> None:
    world = world_with(synchronous)
    world.load(0)
    assert world.lease() == []
    world.load(1)
    leases = world.lease()
    assert {lease.server for lease in leases} == {"server/0", "server/1"}
    world.finish_all()
    (event,) = [event for event in world.events if event["event"] == "evaluated"]
    assert event["versions"] == [0, 0]


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_run_evaluates_all_that_is_due_in_one_version_each(synchronous: bool) -> None:
    world = world_with(synchronous)
    world.run()
    for _ in range(5):
        world.load_all()
        world.lease()
        world.finish_all()
    events = [event for event in world.events if event["event"] == "evaluated"]
    assert {tuple(event["versions"]) for event in events} == {(step, step) for step in (0, 2, 4, 6, 8)}
    assert world.problems() == []


def test_the_loss_of_a_server_for_evaluations_does_not_repeat_a_synchronous_batch() -> None:
    world = world_with(True)
    world.load_all()
    training = [lease for lease in world.lease() if lease.group.evaluation is None]
    world.server_dies(1)
    world.worker_restarts("episodes/1")
    assert not world.loop.order.begin_abort()
    assert all(world.loop.leases.get(lease.id, lease.worker) is lease for lease in training)
    one = next(lease for lease, _ in world.leases.values() if lease.group.evaluation is not None)
    assert world.loop.another_server(one.worker, one.id, one.address) is None, "until it is back"
    world.load_all()
    assert world.loop.another_server(one.worker, one.id, one.address) == world.loop.server_pool.address("server/1")
    world.server_dies(0)
    assert world.loop.leases.get(one.id, one.worker) is one, "a batch that begins again leaves evaluations alone"


def test_servers_for_evaluations_load_no_other_weights(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = make_run(tmp_path / "run", "evaluator.backend=auto", "evaluator.freq_steps=2")
        async with world_of(run, num_servers=2) as world:
            training, evaluating = world.servers
            await world.hello(valid=3)
            await world.publish(0)
            await world.until(lambda: world.controller.server_pool.evaluators.served_version == 0)
            leases = [lease for lease in await world.lease() if lease["purpose"] == "eval"]
            assert {lease["server"] for lease in leases} == {evaluating.address}
            await world.publish(1)
            await world.until(lambda: training.version == 1)
            await world.finish(leases)
            await world.publish(2)
            await world.until(lambda: training.version == 2)
            assert evaluating.log == ["update 0"]
            assert world.controller.loop is not None
            world.controller.loop.evaluations.request(2)
            world.controller.loop_changed()
            await world.until(lambda: evaluating.version == 2)

    asyncio.run(scenario())


def test_an_evaluation_that_begins_late_uses_the_weights_of_its_step(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = make_run(tmp_path / "run", "evaluator.backend=auto", "evaluator.freq_steps=2")
        async with world_of(run, num_servers=2) as world:
            training, evaluating = world.servers
            await world.hello(valid=3)
            await world.publish(0)
            await world.until(lambda: world.controller.server_pool.evaluators.served_version == 0)
            leases = [lease for lease in await world.lease() if lease["purpose"] == "eval"]
            assert await world.publish(1) == {"awaited": [0]}
            loop = world.controller.loop
            assert loop is not None
            loop.evaluations.request(2)
            for version in range(2, 7):
                assert await world.publish(version) == {"awaited": [0, 2]}
            await world.until(lambda: training.version == 6)
            await world.finish(leases)
            await world.until(lambda: evaluating.version == 2)
            await world.finish([lease for lease in await world.lease() if lease["purpose"] == "eval"])
            assert await world.publish(7) == {"awaited": []}
            assert evaluating.log == ["update 0", "update 2"]

    asyncio.run(scenario())
