"""The controller over real HTTP, with fake workers, servers and trainer."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys

import aiohttp
import pytest

from areal_like.config.describe.yaml_text import to_yaml
from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from areal_like.discovery import open_name_store, parse_entry
from areal_like.process.blocking_http import BlockingHttpClient
from areal_like.process.errors import Failure, HttpError, Unreachable
from areal_like.process.frames import pack
from areal_like.process.http import HttpClient
from areal_like.process.identity import PROCESS, TOKEN, Identity, call_headers
from areal_like.process.run import LEDGER, open_run
from areal_like.process.wait import NamedWait
from areal_like.rollout.audit import audit
from areal_like.rollout.controller import routes, servers
from areal_like.rollout.ledger import read_ledger
from tests.support.controller_world import SECRET, SMALL, World, make_run, world_of
from tests.support.crash_record import recording
from tests.support.rollout_world import ROOT

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(routes, "LONG_POLL_S", 0.2)
    monkeypatch.setattr(servers, "RETRY_S", 0.02)


def problems(world: World, max_staleness: int) -> list[str]:
    return audit(read_ledger(world.run.rollouts / LEDGER), max_staleness)


def test_a_run_completes_all_its_steps(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", "evaluator.freq_steps=1")) as world:
            assert (await world.json("/facts", method="GET")) == {"ready": False}
            assert (await world.hello(valid=5))["ok"]
            facts = await world.json("/facts", method="GET")
            assert facts == {
                **{"ready": True, "total_steps": 3, "steps_per_epoch": 5, "train_rows": 20, "valid_rows": 5},
                **{"start_step": 0, "probe_tokens": [1, 2, 3]},
            }
            working = asyncio.create_task(world.work())
            steps = await world.train()
            assert [len(step) for step in steps] == [4, 4, 4]
            async with asyncio.timeout(60):
                await world.life
                await working
            assert world.over
            assert problems(world, 1) == []
            lines = world.metrics()
            assert [line["step"] for line in lines if "rollout/groups" in line] == [1, 2, 3]
            evaluated = {line["eval/due_step"]: line for line in lines if "eval/score" in line}
            assert min(evaluated) == 0 and max(evaluated) == 3
            assert {line["eval/samples"] for line in evaluated.values()} == {5}
            for due in (0, 3):
                assert evaluated[due]["eval/version_min"] == evaluated[due]["eval/version_max"] == due
            assert any("perf/update_stall_s" in line and "perf/generate_tokens_per_s" in line for line in lines)

    asyncio.run(scenario())


def test_an_agent_stat_that_no_trajectory_has_is_logged_once_as_a_warning(tmp_path, caplog):
    async def scenario() -> None:
        keys = ("actor.log_agent_stats=true", "actor.log_agent_stats_keys=[calls]", "evaluator.freq_steps=null")
        async with world_of(make_run(tmp_path / "run", *keys)) as world:
            assert (await world.hello(valid=5))["ok"]
            working = asyncio.create_task(world.work())
            await world.train()
            async with asyncio.timeout(60):
                await world.life
                await working

    with caplog.at_level("WARNING"):
        asyncio.run(scenario())
    assert sum("actor.log_agent_stats_keys: no trajectory" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("replaced", ["no", "with its weights", "without"])
def test_servers_keep_the_first_weights_until_the_first_evaluation_is_complete(tmp_path, replaced):
    """A server that joins meanwhile gets them too. When no server and no file has them, it gets the newest: otherwise
    it would wait forever."""

    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", "evaluator.freq_steps=1")) as world:
            await world.hello(valid=3)
            await world.publish(0)
            leases = await world.lease()
            evaluation = [lease for lease in leases if lease["purpose"] == "eval"]
            assert len(evaluation) == 3
            await world.finish([lease for lease in leases if lease["purpose"] == "train"])
            (server,) = world.servers
            assert (await world.batch(0)).header["samples"]
            await world.publish(1)
            await world.json("/done", {"step": 0})
            if replaced != "no":
                if replaced == "without":
                    shutil.rmtree(world.publication(0))
                await world.remove_server(server)
                server = await world.add_server(0, incarnation=2)
            kept = 1 if replaced == "without" else 0
            await world.until(lambda: server.version == kept)
            for lease in evaluation:
                assert server.log == [f"update {kept}"]
                await world.finish([{**lease, "server": server.address}])
            await world.until(lambda: server.version == 1)
            (line,) = [line for line in world.metrics() if "eval/score" in line]
            assert (line["eval/version_min"], line["eval/version_max"], line["eval/samples"]) == (kept, kept, 3)

    asyncio.run(scenario())


def test_in_synchronous_mode_each_step_waits_for_its_weights_and_its_evaluation(tmp_path):
    async def scenario() -> None:
        run = make_run(
            tmp_path / "run", "async_training=false", "evaluator.freq_steps=1", "rollout.backend=embedded:d2"
        )
        async with world_of(run, num_servers=2) as world:
            await world.hello(valid=3)
            await world.publish(0)
            leases = await world.lease()
            assert {lease["purpose"] for lease in leases} == {"eval"}
            assert {lease["order"]["key"] for lease in leases} == {"eval-0.1"}
            await world.finish(leases)
            leases = await world.lease()
            assert sorted((lease["group"], lease["order"]["place"], lease["order"]["of"]) for lease in leases) == [
                *((0, 0, 2), (1, 0, 2)),
                *((2, 1, 2), (3, 1, 2)),
            ]
            assert len({lease["server"] for lease in leases}) == 2
            await world.hello(incarnation=2, valid=3)  # the worker was started again
            await world.until(lambda: all("abort" in server.log for server in world.servers))
            with pytest.raises(HttpError, match="incarnation 1"):
                await world.lease()
            again = await world.json("/lease", world.wanted(9, "episodes/1"), "episodes/1")
            assert {lease["order"]["key"] for lease in again["leases"]} == {"0.2"}
            assert problems(world, 0) == []

    asyncio.run(scenario())


def test_only_calls_of_this_run_are_answered(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run")) as world:
            url, guessed = f"http://{world._served.address}/facts", call_headers(Identity("trainer", 0), "wrong")
            async with aiohttp.ClientSession() as stranger, stranger.get(url, headers=guessed) as response:
                assert response.status == 401 and "token" in await response.text()
            async with HttpClient(Identity("trainer", 0, attempt=2), SECRET) as newer:
                await newer.json("GET", world._served.address, "/facts")
            with pytest.raises(Failure, match="the run is at attempt 2: this controller of attempt 1 ends"):
                await world.life
            with pytest.raises(HttpError, match="attempt 1"):
                await world.json("/facts", method="GET")

    asyncio.run(scenario())


def test_every_server_gets_the_newest_weights_before_it_gets_work(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", "rollout.backend=embedded:d2"), num_servers=2) as world:
            await world.hello()
            await world.publish(0)
            await world.until(lambda: all(server.version == 0 for server in world.servers))
            await world.publish(1)
            await world.until(lambda: all(server.version == 1 for server in world.servers))
            await world.remove_server(world.servers[1])
            await world.until(lambda: "server/1" not in world.controller.server_pool.servers)
            new = await world.add_server(1, incarnation=2)
            await world.until(lambda: world.controller.server_pool.servers.get("server/1"))
            await world.until(lambda: new.log == ["update 1"])
            await world.until(lambda: len(world.controller.server_pool.ready) == 2)

    asyncio.run(scenario())


def test_a_slow_server_skips_older_versions_and_has_one_update_at_a_time(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run")) as world:
            (server,) = world.servers
            await world.hello()
            server.hold.clear()
            await world.publish(0)
            await world.until(lambda: server.updating)
            for version in (1, 2, 3):
                await world.publish(version)
            assert world.controller.server_pool.served_version == -1
            server.hold.set()
            await world.until(lambda: world.controller.server_pool.served_version == 3)
            assert server.log == ["update 0", "update 3"]
            with pytest.raises(HttpError, match="older than v3"):
                await world.publish(2)

    asyncio.run(scenario())


@pytest.mark.shows("rollout.pause_grace_period")
def test_a_grace_period_is_between_pause_and_update(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", "rollout.pause_grace_period=0.3")) as world:
            await world.hello()
            await world.publish(0)
            await world.until(lambda: world.controller.server_pool.served_version == 0)
            assert world.servers[0].log == ["pause", "update 0", "resume"]
            paused, updated, _ = world.servers[0].times
            assert updated - paused > 0.25

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["refused", "other model", "no folder"])
def test_wrong_weights_end_the_run_with_a_message(tmp_path, fault):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run")) as world:
            await world.hello()
            if fault == "refused":
                world.servers[0].refusal = "tensor model.norm.weight is damaged"
            elif fault == "other model":
                world.servers[0].probe = [-0.5, -1.6]
            if fault == "no folder":
                with pytest.raises(HttpError, match="not a complete publication"):
                    await world.json("/publish", {"version": 0, "folder": str(tmp_path / "none"), "bytes": 0})
                words = "weights v0 cannot be published: .*not a complete publication"
            else:
                await world.publish(0)
                words = {
                    "refused": "server/0 cannot serve weights v0: tensor model.norm.weight is damaged",
                    "other model": "trainer and server compute different models",
                }[fault]
            with pytest.raises(Failure, match=words):
                async with asyncio.timeout(60):
                    await world.life

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("grace", "log"), [("null", ["update 0"]), ("0.01", ["pause", "update 0", "resume"])], ids=["at once", "paused"]
)
def test_an_update_whose_response_is_lost_is_not_sent_twice(tmp_path, monkeypatch, grace, log):
    async def scenario() -> None:
        more = [] if grace == "null" else [f"rollout.pause_grace_period={grace}"]
        async with world_of(make_run(tmp_path / "run", *more)) as world:
            await world.hello()
            command = world.controller.servers._command
            lost: list[str] = []

            async def losing(link, what, *more):
                report = await command(link, what, *more)
                if what == "update_weights" and not lost:
                    lost.append(what)
                    raise Unreachable(link.entry.address, "the answer was lost")
                return report

            monkeypatch.setattr(world.controller.servers, "_command", losing)
            await world.publish(0)
            await world.until(lambda: world.controller.server_pool.served_version == 0)
            assert lost
            assert world.servers[0].log == log

    asyncio.run(scenario())


def test_the_probe_may_be_left_out(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run")) as world:
            await world.hello()
            world.servers[0].probe = []
            await world.publish(0, probe=None)
            await world.until(lambda: world.controller.server_pool.served_version == 0)

    asyncio.run(scenario())


def test_a_run_resumes_from_its_checkpoint(tmp_path):
    checkpoint = tmp_path / "step_000002"

    async def first() -> None:
        async with world_of(make_run(tmp_path / "run", "total_train_steps=4")) as world:
            await world.hello()

            async def save(step: int) -> None:
                if step == 2:
                    frame = await world.frame("/state", {"step": step})
                    (checkpoint / "resume").mkdir(parents=True)
                    (checkpoint / "resume/controller.frame").write_bytes(pack(*frame))

            working = asyncio.create_task(world.work())
            await world.train(save, until=3)
            working.cancel()

    async def second() -> None:
        run = make_run(tmp_path / "run", "total_train_steps=4", step=2, checkpoint=checkpoint, attempt=2)
        async with world_of(run) as world:
            await world.hello()
            working = asyncio.create_task(world.work())
            assert len(await world.train()) == 2
            async with asyncio.timeout(60):
                await world.life
                await working
            events = list(read_ledger(world.run.rollouts / LEDGER))
            assert audit(events, 1) == []
            assert [event["step"] for event in events if event["event"] == "trained"] == [0, 1, 2, 2, 3]
            assert [event["attempt"] for event in events if event["event"] == "recovered"] == [2]

    asyncio.run(first())
    asyncio.run(second())


def test_the_records_of_the_steps_before_a_checkpoint_are_synced_before_its_state_is_given(tmp_path):
    """A crash of the machine loses what was not: the audit would miss groups that the checkpoint counts as trained."""

    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", "total_train_steps=4")) as world:
            await world.hello()
            files, checked = [world.run.rollouts / LEDGER, world.run.metrics / "rollout-0.jsonl"], list[int]()

            async def save(step: int) -> None:
                if step == 2:
                    written = {str(path): path.read_bytes() for path in files}
                    with recording(world.run.directory) as record:
                        await world.frame("/state", {"step": step})
                    synced = {each.path: each.content or b"" for each in record.operations if each.kind == "sync"}
                    assert all(written.values()) and written.keys() < synced.keys()
                    assert all(synced[path].startswith(content) for path, content in written.items())
                    assert {str(world.run.rollouts), str(world.run.metrics), str(world.run.directory)} < synced.keys()
                    checked.append(step)

            working = asyncio.create_task(world.work())
            await world.train(save, until=3)
            working.cancel()
            assert checked == [2]

    asyncio.run(scenario())


@pytest.mark.parametrize("missing", [False, True])
def test_data_that_changed_or_a_checkpoint_without_the_controller_s_part_is_refused(tmp_path, missing):
    checkpoint = tmp_path / "step_000000"
    (checkpoint / "resume").mkdir(parents=True)

    async def scenario() -> None:
        if not missing:
            async with world_of(make_run(tmp_path / "run")) as world:
                await world.hello()
                frame = await world.frame("/state", {"step": 0})
                (checkpoint / "resume/controller.frame").write_bytes(pack(*frame))
        async with world_of(make_run(tmp_path / "run", checkpoint=checkpoint, attempt=2)) as world:
            words = (
                "resume: .*controller.frame is missing"
                if missing
                else "train_dataset: the data has changed since the checkpoint"
            )
            with pytest.raises(HttpError, match=words):
                await world.hello(digest="other")
            with pytest.raises((Failure, ConfigError), match=words):
                await world.life

    asyncio.run(scenario())


def test_workers_with_different_data_end_the_run(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run")) as world:
            await world.hello()
            with pytest.raises(HttpError, match="has other data"):
                await world.hello("episodes/1", digest="other")
            with pytest.raises(Failure, match=r"^train_dataset: episodes/1 has other data"):
                await world.life

    asyncio.run(scenario())


def test_too_little_data_ends_the_run_with_a_message(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run")) as world:
            with pytest.raises(HttpError, match=r"train_dataset\.batch_size"):
                await world.hello(rows=3)
            with pytest.raises(Failure, match=r"^train_dataset.batch_size: a batch needs 4 rows"):
                await world.life

    asyncio.run(scenario())


def test_a_reward_that_always_fails_ends_the_run_with_its_message(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", "rollout.request_retries=0")) as world:
            await world.hello()
            await world.publish(0)
            leases = await world.lease()
            await world.finish(leases, status="failed", error="the reward is nan", error_kind="reward", facts=[])
            with pytest.raises(Failure, match=r"^reward.name: 4 groups in a row failed.*the reward is nan"):
                await world.life

    asyncio.run(scenario())


def test_stopping_ends_the_trainer_after_the_batches_that_it_has(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run")) as world:
            await world.hello()
            await world.publish(0)
            await world.finish(await world.lease())
            assert "samples" in (await world.batch(0, rank=0, world=2)).header
            world.controller.stop("stopped as asked")
            assert "samples" in (await world.batch(0, rank=1, world=2)).header
            assert (await world.batch(1, rank=0, world=2)).header == {"stop": "stopped as asked"}
            assert (await world.frame("/state", {"step": 1})).header["step"] == 1
            await world.json("/finished", {"step": 1, "early": True})
            assert await world.lease() == []
            assert world.over
            async with asyncio.timeout(60):
                await world.life

    asyncio.run(scenario())


def test_stopping_does_not_wait_for_an_abandoned_evaluation(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", "evaluator.freq_steps=1")) as world:
            await world.hello(valid=5)
            await world.publish(0)
            await world.until(lambda: world.controller.server_pool.served_version == 0)
            assert world.controller.loop is not None and not world.controller.loop.evaluations.idle
            await world.json("/finished", {"step": 3, "early": False})
            world.controller.stop("stopped as asked")
            async with asyncio.timeout(60):
                await world.lease()
                await world.life

    asyncio.run(scenario())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_ends_the_controller_and_not_its_caller(tmp_path):
    async def scenario() -> None:
        run = make_run(tmp_path / "run")
        run.rollouts.mkdir()
        async with world_of(run) as world:
            await world.hello()
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, world.controller._records._ledger._file.fileno())
            os.close(full)
            await world.publish(0)
            assert await world.lease()
            with pytest.raises(Failure, match=r"^cluster.fileroot: .*No space left on device; make room there"):
                await world.life

    asyncio.run(scenario())


def test_a_worker_whose_server_is_lost_gets_another(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", "rollout.backend=embedded:d2"), num_servers=2) as world:
            await world.hello()
            await world.publish(0)
            await world.until(lambda: len(world.controller.server_pool.ready) == 2)
            lease = (await world.lease(1))[0]
            gone = next(server for server in world.servers if server.address == lease["server"])
            other = next(server for server in world.servers if server is not gone)
            ask = {"worker": "episodes/0", "lease": lease["id"], "gone": gone.address}
            await world.remove_server(gone)
            assert await world.json("/another_server", ask, "episodes/0") == {"server": other.address}
            await world.until(lambda: len(world.controller.server_pool.servers) == 1)
            await world.remove_server(other)
            await world.until(lambda: not world.controller.server_pool.servers)
            ask["gone"] = other.address
            assert await world.json("/another_server", ask, "episodes/0") == {"wait": True}
            assert await world.json("/another_server", {**ask, "lease": "9.9"}, "episodes/0") == {"void": True}

    asyncio.run(scenario())


def test_cancelled_leases_are_reported_to_their_worker(tmp_path):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", "async_training=false")) as world:
            await world.hello("episodes/0")
            await world.hello("episodes/1")
            await world.publish(0)
            await world.lease(1, "episodes/0")
            mine = await world.lease(2, "episodes/1")
            await world.hello("episodes/0", incarnation=2)
            reply = await world.finish([], "episodes/1")
            assert reply == {"void": [lease["id"] for lease in mine]}

    asyncio.run(scenario())


def test_a_call_waits_until_it_can_be_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(routes, "LONG_POLL_S", 600.0)

    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run")) as world:
            await world.hello()
            waiting = asyncio.create_task(world.lease())
            trainer = asyncio.create_task(world.frame("/batch", {"step": 0, "rank": 0, "world": 1}))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await world.publish(0)
            async with asyncio.timeout(60):
                leases = await waiting
                assert not trainer.done()
                await world.finish(leases)
                assert "samples" in (await trainer).header

    asyncio.run(scenario())


def test_a_worker_that_disconnected_while_waiting_gets_no_lease(tmp_path, monkeypatch):
    monkeypatch.setattr(routes, "LONG_POLL_S", 5.0)

    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run")) as world:
            await world.hello()
            await world.lease(want=0)  # all rows are inspected
            with pytest.raises(Unreachable):
                await world.json("/lease", world.wanted(9), "episodes/0", timeout_s=0.05)
            await world.publish(0)
            await world.until(lambda: world.controller.server_pool.served_version == 0)
            await asyncio.sleep(0.05)
            assert next(lease["id"] for lease in await world.lease()) == "0.1"

    asyncio.run(scenario())


@pytest.mark.shows("rollout.setup_timeout")
def test_servers_that_never_start_are_named_with_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "areal_like.rollout.controller.servers.patience_s", lambda config, _: config.rollout.setup_timeout
    )

    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", "rollout.setup_timeout=0.1"), num_servers=0) as world:
            with pytest.raises(Failure, match=r"rollout.setup_timeout: waited .* for 1 of 1 inference servers"):
                async with asyncio.timeout(60):
                    await world.life

    asyncio.run(scenario())


@pytest.mark.shows("rollout.enable_rollout_tracing")
def test_tracing_writes_every_stage_into_the_log(tmp_path, caplog):
    async def scenario() -> None:
        async with world_of(make_run(tmp_path / "run", "rollout.enable_rollout_tracing=true")) as world:
            await world.hello()
            await world.publish(0)
            await world.finish(await world.lease())

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
    assert "event=submitted group=0" in caplog.text
    assert "event=finished group=3" in caplog.text


def test_the_controller_imports_neither_torch_nor_transformers():
    code = (
        "import sys; import areal_like.rollout.controller.controller; print({'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr


def test_the_process_announces_itself_and_ends_at_the_trainers_request(tmp_path):
    values = load(ROOT / "experiments/grpo.yaml", [*SMALL, "rollout.backend=embedded", f"cluster.fileroot={tmp_path}"])
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(values.values))
    record = {"run_id": "run1", "experiment": "grpo", "folder": str(tmp_path), "cwd": str(tmp_path)}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "attempt.json").write_text(json.dumps({"attempt": 1, "step": 0, "checkpoint": None}))
    run = open_run(folder)
    environment = {**os.environ, PROCESS: "rollout/0", TOKEN: SECRET}
    command = [sys.executable, "-m", "areal_like.rollout.controller", "--run-dir", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        with open_name_store(run, Identity("trainer", 0)) as names:
            entry = parse_entry(names.wait("rollout/0", NamedWait("the controller", 30.0, "test")))
            assert entry.pid == process.pid
            caller = BlockingHttpClient(Identity("trainer", 0), SECRET)
            assert caller.json("GET", entry.address, "/facts") == {"ready": False}
            process.send_signal(signal.SIGTERM)
            caller.json("POST", entry.address, "/finished", {"step": 0, "early": True})
            assert process.wait(120) == 0
            assert names.find("rollout") == {}
            caller.close()
    finally:
        process.kill()
        process.wait()
