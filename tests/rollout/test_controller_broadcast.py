"""Weight broadcast: the servers of a group, and servers that refuse, die or join later.

Controller, HTTP and names are real; servers and trainer transfer nothing, and report what a test sets.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from areal_like.process.errors import Failure, HttpError
from areal_like.process.http import json_response, read_json
from areal_like.rollout.controller import routes, servers, weight_broadcast
from areal_like.rollout.controller.publications import read_publication
from areal_like.weights.index import Index, dump_index
from areal_like.weights.rendezvous import Rendezvous
from tests.support.controller_world import PROBE, FakeServer, World, make_run, world_of

pytestmark = pytest.mark.timeout(300)

"""The real time that the trainer waits for an answer."""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "LONG_POLL_S", 0.2)
    monkeypatch.setattr(servers, "RETRY_S", 0.02)
    monkeypatch.setattr(weight_broadcast, "RETRY_S", 0.05)


class Taker(FakeServer):
    """Joins groups. `refuses`, `dies` and `never_takes_part` set its behaviour when it has to receive."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.refuses: list[tuple[int, str]] = []
        self.dies = False
        self.never_takes_part = ""
        self.devices: list[str] = []
        self.rendezvous_bodies: list[dict[str, Any]] = []
        self.modes: list[str] = []
        self.trainer: Trainer | None = None
        self.staged = -1

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/control/stage_weights", self._stage),
            web.post("/control/commit_weights", self._commit),
            *super().routes(),
        ]

    async def _stage(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        assert body["transport"] == "collective" and body["folder"] is None
        assert body["index"]["version"] == body["version"]
        self.rendezvous_bodies.append(body["meeting"])
        self.modes.append(body["mode"])
        if self.refuses:
            status, message = self.refuses.pop(0)
            raise HttpError(status, message)
        if self.never_takes_part:
            raise HttpError(503, self.never_takes_part)
        if self.dies:
            await self.stop()
            assert request.transport is not None
            request.transport.close()
        assert self.trainer is not None
        if why := await self.trainer.until_sent(body["meeting"]["group"]):
            raise HttpError(503, f"the group was broken up: {why}")
        self.staged = body["version"]
        self.log.append(f"stage {self.staged}")
        return json_response({"staged": self.staged})

    async def _health(self, request: web.Request) -> web.Response:
        return json_response({"version": self.version, "processes": 1, "devices": self.devices})

    async def _commit(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        assert body["version"] == self.staged
        self.version = self.staged
        self.log.append(f"commit {self.version}")
        done = {"version": self.version, "stall_s": 0.01, "load_s": 0.02, "tensors": 4, "probe_logprobs": self.probe}
        read_back = {"covered": 3, "uncovered": ["model.norm.weight"]}
        return json_response({**done, "generated": {"tokens": 1, "busy_s": 0.1}, "read_back": read_back})


class Trainer:
    """Joins the groups that it is sent to; what it sends has arrived when all members wait for it."""

    def __init__(self, world: World) -> None:
        self.world, self.version = world, -1
        self.groups: list[dict[str, Any]] = []
        self.offered: list[int] = []
        self.kept = ""
        """The group that it says it has kept."""
        self.devices: list[str] = []
        self.ended = False
        self._over: dict[str, asyncio.Future[str]] = {}
        self._waiting: dict[str, int] = {}

    async def publish(self, version: int) -> None:
        index = dump_index(Index(version, "run1", [], PROBE))
        place = {"host": "127.0.0.1", "port": 1, "devices": self.devices}
        body = {"version": version, "transport": "collective", "folder": None, "bytes": 0}
        await self.world.json("/publish", {**body, "index": index, "meeting": place})
        self.version = version

    async def until_sent(self, group: str) -> str:
        """The failure that all servers of the group report."""
        self._waiting[group] = self._waiting.get(group, 0) + 1
        world = next(rendezvous["world"] for rendezvous in self.groups if rendezvous["group"] == group)
        over = self._over.setdefault(group, asyncio.get_running_loop().create_future())
        if self._waiting[group] == world - 1 and not over.done():
            over.set_result("")
        return await over

    async def live(self) -> None:
        while not self.ended:
            self.offered.append(self.version)
            reply = await self.world.json("/send", {"version": self.version, "kept": self.kept})
            self.ended = bool(reply.get("end"))
            if rendezvous := reply.get("meeting"):
                self.groups.append(rendezvous)
                await self._watch(rendezvous["group"])

    async def _watch(self, group: str) -> None:
        over = self._over.setdefault(group, asyncio.get_running_loop().create_future())
        while not (reply := await self.world.json("/sending", {"group": group}))["over"]:
            pass
        if reply["why"] and not over.done():
            over.set_result(reply["why"])


async def add(world: World, trainer: Trainer, index: int) -> Taker:
    server = Taker(index, 1, world.store)
    server.trainer = trainer
    await server.start()
    world.servers.append(server)
    world.controller.servers.check_now()
    return server


async def has_asked(world: World, trainer: Trainer, version: int) -> None:
    """Waits until the trainer has asked with that version, and got an answer, three more times."""
    times = trainer.offered.count(version) + 4
    await world.until(lambda: trainer.offered.count(version) >= times)


def scenario(tmp_path: Path, test: Callable[[World, Trainer], Any], *overrides: str, valid: int = 0) -> None:
    async def main() -> None:
        async with world_of(make_run(tmp_path / "run", *overrides), num_servers=0) as world:
            await world.hello(valid=valid)
            trainer = Trainer(world)
            living = asyncio.create_task(trainer.live())
            try:
                await test(world, trainer)
            finally:
                living.cancel()
                await asyncio.gather(living, return_exceptions=True)

    asyncio.run(main())


async def until_served(world: World, version: int) -> None:
    await world.until(lambda: world.servers and all(server.version == version for server in world.servers))


async def seen(world: World, count: int) -> None:
    await world.until(lambda: len(world.controller.servers.handles) == count)


def test_the_delay_of_weights_counts_from_when_the_trainer_began_to_publish_them() -> None:
    """It may have hashed and written them for some time before the controller hears of them."""
    index = dump_index(Index(1, "run1", [], PROBE))
    body = {"version": 1, "transport": "collective", "folder": None, "index": index, "meeting": {}, "age_ms": 5000}
    before = time.monotonic()
    assert before - 5 <= read_publication(body).at <= time.monotonic() - 5


def test_a_version_that_the_trainer_overwrites_goes_to_no_further_server(tmp_path) -> None:
    """A server that joins meanwhile gets the next one."""

    async def test(world: World, trainer: Trainer) -> None:
        first = await add(world, trainer, 0)
        await trainer.publish(0)
        await until_served(world, 0)
        asking = asyncio.create_task(world.json("/send", {"version": 0, "kept": ""}))
        await world.json("/withdraw", {"version": 0})
        assert (await asking)["wait"]
        second = await add(world, trainer, 1)
        await seen(world, 2)
        assert (await world.json("/send", {"version": 0, "kept": ""})).get("meeting") is None
        await trainer.publish(1)
        await until_served(world, 1)
        assert first.log[-1] == "commit 1" and second.log == ["stage 1", "commit 1"]

    scenario(tmp_path, test)


def test_all_servers_that_are_there_get_a_version_in_one_group(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        first, second = await add(world, trainer, 0), await add(world, trainer, 1)
        await seen(world, 2)
        for version in (0, 1):
            await trainer.publish(version)
            await until_served(world, version)
        assert [rendezvous["world"] for rendezvous in trainer.groups] == [3, 3]
        secrets = {
            rendezvous["group"].partition(".")[2] for rendezvous in trainer.groups
        }  # so that no other can be in one
        assert len(secrets) == 2 and all(len(secret) == 32 for secret in secrets)
        assert {server.rendezvous_bodies[0]["first_rank"] for server in (first, second)} == {1, 2}
        assert {rendezvous["backend"] for rendezvous in trainer.groups} == {"gloo"}
        assert first.log == second.log == ["stage 0", "commit 0", "stage 1", "commit 1"]
        assert first.modes == ["wait", "wait"]
        assert {rendezvous["timeout_s"] for rendezvous in first.rendezvous_bodies} == {77}
        assert world.controller.servers.times.take()["perf/read_back_share"] == 0.75

    scenario(tmp_path, test, "rollout.update_mode=wait", "weights.broadcast.timeout_s=77")


def test_servers_stay_in_a_group_while_they_are_the_same(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        await add(world, trainer, 0)
        await seen(world, 1)
        for version in range(3):
            await trainer.publish(version)
            await until_served(world, version)
            trainer.kept = trainer.groups[0]["group"]
        first = trainer.groups[0]
        assert [each["continues"] for each in trainer.groups] == ["", first["group"], first["group"]]
        assert len({each["group"] for each in trainer.groups}) == 3, "each transfer has its own name"
        await add(world, trainer, 1)  # gets the version alone
        await seen(world, 2)
        await until_served(world, 2)
        await trainer.publish(3)
        await until_served(world, 3)
        assert [each["continues"] for each in trainer.groups[3:]] == ["", ""]

    scenario(tmp_path, test)


def test_a_group_that_the_trainer_has_left_is_not_continued(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        await add(world, trainer, 0)
        await seen(world, 1)
        for version in range(2):
            await trainer.publish(version)
            await until_served(world, version)
        assert [each["continues"] for each in trainer.groups] == ["", ""]

    scenario(tmp_path, test)


def test_a_path_between_gpus_that_fails_is_replaced_by_main_memory(tmp_path, caplog) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        server = await add(world, trainer, 0)
        server.devices = ["GPU-b"]
        trainer.devices = ["GPU-a"]
        server.refuses = [(503, "the group was broken up: NCCL error")]
        await seen(world, 1)
        await trainer.publish(0)
        await until_served(world, 0)
        assert [each["backend"] for each in trainer.groups] == ["nccl", "gloo"]

    with caplog.at_level("INFO", logger=weight_broadcast.__name__):
        scenario(tmp_path, test)
    assert "weights go to server/0 by nccl: each process has a GPU of its own" in caplog.text
    assert "weights go to server/0 by gloo: server/0: a transfer by nccl failed" in caplog.text


@pytest.mark.shows("weights.broadcast.timeout_s")
def test_timeout_s_of_the_broadcast_ends_a_run_whose_trainer_sends_nothing(tmp_path) -> None:
    async def main() -> None:
        async with world_of(make_run(tmp_path / "run", "weights.broadcast.timeout_s=1"), num_servers=0) as world:
            await world.hello()
            trainer = Trainer(world)
            await add(world, trainer, 0)
            await seen(world, 1)
            await trainer.publish(0)
            with pytest.raises(
                Failure, match=r"weights\.broadcast\.timeout_s: waited .* for the trainer to send weights"
            ):
                async with asyncio.timeout(60):
                    await world.life

    asyncio.run(main())


def test_none_takes_a_version_into_use_before_all_have_it(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        first, second = await add(world, trainer, 0), await add(world, trainer, 1)
        await seen(world, 2)
        second.refuses = [(409, "version 0 of the weights: tensor model.norm.weight is corrupted")]
        await trainer.publish(0)
        await until_served(world, 0)
        assert len(trainer.groups) > 1
        assert "commit 0" in first.log and first.log.index("stage 0") < first.log.index("commit 0")

    scenario(tmp_path, test)


def test_a_server_that_refuses_once_gets_it_again_after_the_others(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        sound, refuses = await add(world, trainer, 0), await add(world, trainer, 1)
        await seen(world, 2)
        refuses.refuses = [(409, "version 0 of the weights: tensor model.norm.weight is corrupted")]
        await trainer.publish(0)
        await until_served(world, 0)
        assert [rendezvous["world"] for rendezvous in trainer.groups] == [3, 2, 2]
        assert sound.log == refuses.log == ["stage 0", "commit 0"]

    scenario(tmp_path, test)


def test_weights_refused_twice_end_the_run_with_the_servers_message(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        server = await add(world, trainer, 0)
        server.refuses = [(409, "version 0 of the weights: tensor model.norm.weight is corrupted")] * 2
        await trainer.publish(0)
        words = "server/0 cannot serve weights v0: version 0 .* tensor model.norm.weight is corrupted"
        with pytest.raises(Failure, match=words):
            async with asyncio.timeout(60):
                await world.life

    scenario(tmp_path, test)


def test_a_server_that_dies_while_it_receives_costs_the_others_no_version(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        stays, dies = await add(world, trainer, 0), await add(world, trainer, 1)
        await seen(world, 2)
        dies.dies = True
        await trainer.publish(0)
        await world.until(lambda: stays.version == 0)
        world.servers.remove(dies)
        replaced = await add(world, trainer, 1)
        await until_served(world, 0)
        assert replaced.log == ["stage 0", "commit 0"]
        await trainer.publish(1)
        await until_served(world, 1)
        assert trainer.groups[-1]["world"] == 3

    scenario(tmp_path, test)


def test_a_late_server_gets_the_newest_version_in_a_separate_group(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        first = await add(world, trainer, 0)
        await trainer.publish(4)
        await until_served(world, 4)
        late = await add(world, trainer, 1)
        await until_served(world, 4)
        assert (first.log, late.log) == (["stage 4", "commit 4"], ["stage 4", "commit 4"])
        assert [rendezvous["world"] for rendezvous in trainer.groups] == [2, 2]

    scenario(tmp_path, test)


def test_a_broadcast_superseded_by_a_newer_version_waits_for_it(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        await trainer.publish(0)
        trainer.version = 1  # it has made it, and not reported it yet
        server = await add(world, trainer, 0)
        await has_asked(world, trainer, 1)
        assert server.log == []
        await trainer.publish(1)
        await until_served(world, 1)
        assert server.log == ["stage 1", "commit 1"]

    scenario(tmp_path, test)


def numbers(server: Taker) -> list[int]:
    return [int(Rendezvous(**rendezvous).title.rpartition("-")[2]) for rendezvous in server.rendezvous_bodies]


def test_a_version_published_while_the_trainer_still_asks_is_sent_in_one_round(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(routes, "LONG_POLL_S", 600.0)  # an answer that comes at all has not waited for it

    async def test(world: World, trainer: Trainer) -> None:
        server = await add(world, trainer, 0)
        await trainer.publish(0)
        await until_served(world, 0)
        await world.until(
            lambda: trainer.offered == [-1, 0] or len(trainer.offered) > 2
        )  # whether another server needs v0
        await trainer.publish(1)
        await until_served(world, 1)
        assert numbers(server) == [1, 2]

    scenario(tmp_path, test)


def test_no_group_is_opened_while_the_trainer_is_ahead_of_what_it_has_published(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        await trainer.publish(0)
        trainer.version = 1
        await has_asked(world, trainer, 1)
        server = await add(world, trainer, 0)
        await has_asked(world, trainer, 1)
        await trainer.publish(1)
        await until_served(world, 1)
        assert numbers(server) == [1]

    scenario(tmp_path, test)


def test_a_server_that_never_takes_part_does_not_hold_up_the_others(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        away, sound = await add(world, trainer, 0), await add(world, trainer, 1)
        await seen(world, 2)
        away.never_takes_part = "the engine is gone"
        for version in (0, 1):
            await trainer.publish(version)
            await world.until(partial(_serves, sound, version))
        assert sound.log == ["stage 0", "commit 0", "stage 1", "commit 1"]
        assert [rendezvous["world"] for rendezvous in sound.rendezvous_bodies].count(3) <= 1
        away.never_takes_part = ""
        await until_served(world, 1)
        await trainer.publish(2)
        await until_served(world, 2)
        assert trainer.groups[-1]["world"] == 3

    scenario(tmp_path, test)


def test_a_server_that_never_takes_part_ends_the_run_after_growing_waits(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(weight_broadcast, "MAX_BREAKUPS", 4)

    async def test(world: World, trainer: Trainer) -> None:
        server = await add(world, trainer, 0)
        server.never_takes_part = "the engine is gone"
        began = time.monotonic()
        await trainer.publish(0)
        words = "server/0 cannot receive weights v0, the group was broken up 4 times in a row: the engine is gone"
        with pytest.raises(Failure, match=words):
            async with asyncio.timeout(60):
                await world.life
        assert len(server.rendezvous_bodies) == 4
        assert time.monotonic() - began > (1 + 2 + 4) * weight_broadcast.RETRY_S

    scenario(tmp_path, test)


def test_the_trainer_may_end_when_no_more_weights_are_needed(tmp_path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        await add(world, trainer, 0)
        await trainer.publish(0)
        await until_served(world, 0)
        assert not trainer.ended
        await world.json("/finished", {"step": 3, "early": False})
        await world.until(lambda: trainer.ended)

    scenario(tmp_path, test)


def _serves(server: Any, version: int) -> bool:
    return bool(server.version == version)


def test_a_broadcast_waits_for_the_first_evaluation(tmp_path: Path) -> None:
    async def test(world: World, trainer: Trainer) -> None:
        server = await add(world, trainer, 0)
        await trainer.publish(0)
        leases = await world.lease()
        await world.finish([lease for lease in leases if lease["purpose"] == "train"])
        assert (await world.batch(0)).header["samples"]
        await trainer.publish(1)
        await world.json("/done", {"step": 0})
        for lease in [lease for lease in leases if lease["purpose"] == "eval"]:
            assert server.log == ["stage 0", "commit 0"]
            await world.finish([lease])
        await until_served(world, 1)
        assert [line["eval/version_max"] for line in world.metrics() if "eval/score" in line] == [0]

    scenario(tmp_path, test, "evaluator.freq_steps=1", valid=3)
