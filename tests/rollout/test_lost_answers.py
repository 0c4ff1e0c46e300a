"""Leases whose answer was lost are queued again once their worker does not report them; nothing is trained on twice."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from areal_like.discovery.base import Entry
from areal_like.process.http import HttpClient
from areal_like.process.identity import Identity
from areal_like.process.run import LEDGER
from areal_like.rollout.audit import audit
from areal_like.rollout.controller import routes, servers
from areal_like.rollout.episodes import controller_client
from areal_like.rollout.episodes.controller_client import ControllerClient
from areal_like.rollout.episodes.runner import EpisodeResult
from areal_like.rollout.episodes.worker import EpisodeWorker
from areal_like.rollout.groups import Result
from areal_like.rollout.ledger import read_ledger
from tests.support.controller_world import SECRET, make_run, world_of
from tests.support.rollout_world import World, facts, settings

# The loop.


def numbers(leases):
    return [lease.group.number for lease in leases]


@pytest.mark.parametrize("synchronous", [False, True])
def test_leases_that_their_worker_did_not_receive_are_queued_again_at_once(synchronous):
    world = World(settings(synchronous=synchronous))
    world.load_all()
    held = world.lease(1)
    lost = world.lose(2)
    assert numbers(held) == [0] and numbers(lost) == [1, 2]
    assert world.loop.held("episodes/0", 9, [held[0].id])
    assert world.loop.warnings == ["episodes/0 did not receive 2 leases that were sent; they are queued again"]
    again = world.loop.lease("episodes/1", 2)
    world.after()
    assert sorted(numbers(again)) == [1, 2]
    assert {lease.id for lease in again} == {"1.2", "2.2"}
    requeued = [(event["groups"], event["why"]) for event in world.events if event["event"] == "requeued"]
    assert sorted(group for groups, _ in requeued for group in groups) == [1, 2]
    assert {why for _, why in requeued} == {"episodes/0 did not receive it"}
    # The others run on: nothing was generated in the slots of a synchronous step, which does not begin again.
    assert [lease.id for lease in world.loop.leases if lease.worker == "episodes/0"] == ["0.1"]
    if synchronous:
        assert {lease.group.number: lease.slot for lease in again} == {lease.group.number: lease.slot for lease in lost}
        assert not world.loop.order.begin_abort()


def test_a_result_that_comes_after_its_lease_was_queued_again_is_refused():
    world = World(settings(batch_size=1, max_concurrent=1))
    world.load_all()
    (lost,) = world.lose()
    assert world.report()
    (again,) = world.lease()
    for _ in range(2):
        world.loop.finish("episodes/0", [Result(lost.id, "done", facts(0, [0.0, 1.0]), b"late")])
    assert not world.loop.ready and world.loop.leases.take_cancelled("episodes/0") == [lost.id]
    world.finish(again)
    assert [bytes(group.blob) for group in world.loop.ready.values()] == [again.id.encode()]
    world.finish(again)
    assert world.problems() == [] and len(world.loop.ready) == 1


def test_a_report_that_was_overtaken_by_a_later_one_loses_nothing():
    world = World(settings())
    world.load_all()
    world.lease(1)
    leases = world.lease(2)
    number = world.calls["episodes/0"]
    assert not world.loop.held("episodes/0", number - 1, [])
    assert not world.loop.held("episodes/0", number, [])
    assert len(world.loop.leases) == 3
    world.loop.worker_started("episodes/0")
    assert len(world.loop.leases) == 0
    assert not world.loop.held("episodes/0", 1, [])  # the next incarnation counts from 1
    assert len(leases) == 2


def test_lost_answers_do_not_count_as_deaths_of_a_worker():
    world = World(settings(batch_size=1, max_concurrent=1, request_retries=0))
    world.load_all()
    for _ in range(30):
        assert numbers(world.lose()) == [0]
        assert world.report()
    world.run()
    assert world.loop.failure == "" and world.problems() == []


def test_leases_that_are_held_but_were_cancelled_are_named_until_the_worker_stops_them():
    world = World(settings(synchronous=True))
    world.load_all()
    first, *_ = world.lease(2)
    world.loop.server_gone("server/0")
    assert sorted(world.loop.leases.take_cancelled("episodes/0")) == ["0.1", "1.1"]  # the answer is lost
    world.report()
    world.report()
    assert sorted(world.loop.leases.take_cancelled("episodes/0")) == ["0.1", "1.1"]
    del world.leases[first.id]
    world.report()
    assert world.loop.leases.take_cancelled("episodes/0") == ["1.1"]


# A worker and the controller, over HTTP.


class Tools:
    def counts(self) -> dict[str, int]:
        return {}


class Runner:
    """Of the row's version; it needs no server."""

    def __init__(self, world: Any) -> None:
        self.tools, self._world = Tools(), world
        self.runs: Counter[str] = Counter()

    async def inspect(self, rows: dict[str, list[int]]) -> dict[str, Any]:
        return {part: [[row, f"{row:016x}", False] for row in rows[part]] for part in rows}

    async def run(self, lease: dict[str, Any]) -> EpisodeResult:
        self.runs[lease["id"]] += 1
        await asyncio.sleep(0)
        samples = facts(self._world.servers[0].version, [float(index) for index in range(lease["n"])])
        header = {"lease": lease["id"], "status": "done", "facts": samples, "timings": {}}
        return EpisodeResult(header, f"group {lease['group']}".encode())


@pytest.mark.parametrize("path", ["lease", "finish"])
@pytest.mark.parametrize("mode", ["async_training=true", "async_training=false"])
def test_a_connection_that_is_cut_after_the_controller_has_answered_costs_no_group(tmp_path, monkeypatch, path, mode):
    monkeypatch.setattr(controller_client, "RETRY_DELAY_S", 0.01)
    monkeypatch.setattr(routes, "LONG_POLL_S", 0.2)
    monkeypatch.setattr(servers, "RETRY_S", 0.02)
    handler, answers = getattr(routes.Routes, path), []

    async def cut_off(self, request):
        """Cuts every third answer that gives leases or takes results."""
        before = len(self._controller.loop.leases)
        response = await handler(self, request)
        if len(self._controller.loop.leases) != before:
            answers.append(path)
            if len(answers) % 3 == 1:
                request.transport.abort()
        return response

    monkeypatch.setattr(routes.Routes, path, cut_off)

    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", mode)) as world:
            me = Identity("episodes", 0)
            async with HttpClient(me, SECRET) as caller:
                client = ControllerClient(caller, me, lambda waiting: Entry(world._served.address, 1, 1, 1), 60.0)
                await world.hello()
                runner: Any = Runner(world)
                working = asyncio.create_task(EpisodeWorker(client, runner, 4).work())
                steps = await world.train()
                async with asyncio.timeout(60):
                    await working
                    await world.life
            events = list(read_ledger(world.run.rollouts / LEDGER))
            assert audit(events, 1) == []
            assert [len(step) for step in steps] == [4, 4, 4]
            trained = [group for step in steps for group in step]
            assert len(set(trained)) == 12
            again = [group for event in events if event["event"] == "requeued" for group in event["groups"]]
            counts = sum(line.get("rollout/requeued", 0) for line in world.metrics())
            assert bool(again) == (path == "lease") and counts == len(again)
            assert set(runner.runs.values()) == {1}

    asyncio.run(scenario())
    assert answers
