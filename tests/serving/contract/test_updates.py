"""Weight updates on every engine: complete or refused, during generation."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from areal_like.process.identity import Identity, call_headers
from areal_like.weights.fingerprint import tensor_hash
from tests.ring.server import flip_a_byte
from tests.support.engine_answers import CANNOT_KEEP, PARITY, generating, largest_gap, length_of, long_groups
from tests.support.engine_environments import EXTERNAL, slow_on
from tests.support.engines import PROBE, SECRET, LiveServer, logprobs_of, model
from tests.support.raw_http import DISGUISES, status_of
from tests.support.server_session import CONTROLLER, ServerSession, group, in_session

TENSOR = "model.layers.1.mlp.up_proj.weight"

# Pausing.


@pytest.mark.parametrize("mode", ["keep", "abort"])
def test_a_pause_stops_everything_and_loses_nothing(server: LiveServer, mode: str) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        if mode == "keep" and server.engine in CANNOT_KEEP:
            refused = await one.refusal("/control/pause", {"mode": mode})
            assert refused.status == 409 and "keep" in refused.message and "abort" in refused.message
            return
        requested = long_groups(server, 6, n=2)
        answers = asyncio.ensure_future(one.generate(*requested))
        await one.until(generating)
        answer = await one.post("/control/pause", {"mode": mode})
        assert answer["paused"] is True and answer["mode"] == mode
        assert (await one.get("/health"))["status"] == "paused"
        late = asyncio.ensure_future(one.tokens(max_new_tokens=4))
        before = await _counted(one)
        await asyncio.sleep(0.4)
        assert not answers.done() and not late.done()
        assert await _counted(one) == before
        await one.post("/control/resume")
        for sent, samples in zip(requested, await answers, strict=True):
            for sample in samples:
                assert len(sample["token_ids"]) == length_of(server)
                assert largest_gap(sent["prompt"], sample, {server.version: 1}) <= PARITY
        assert len((await late)[0]) >= 1

    in_session(server, test)


async def _counted(one: ServerSession) -> Any:
    return (await one.get("/control/statistics")).get("tokens")


def test_a_waiting_pause_returns_when_running_requests_are_done(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        answers = asyncio.ensure_future(one.generate(*long_groups(server, 4)))
        await one.until(generating)
        await one.post("/control/pause", {"mode": "wait"})
        samples = await asyncio.wait_for(answers, 60)
        assert [len(each[0]["token_ids"]) for each in samples] == [length_of(server)] * 4
        late = asyncio.ensure_future(one.tokens(max_new_tokens=4))
        await asyncio.sleep(0.3)
        assert not late.done()
        await one.post("/control/resume")
        assert len(await late) == 1

    in_session(server, test)


def test_aborted_groups_end_with_an_error_and_others_continue(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        answers = asyncio.ensure_future(one.outcomes(*long_groups(server, 3)))
        await one.until(generating)
        assert (await one.post("/control/abort", {"ids": ["long0", "long2"]}))["aborted"] == 2
        first, second, third = await answers
        assert "aborted" in str(first) and "aborted" in str(third)
        assert len(second[0]["token_ids"]) == length_of(server)
        idle = await one.until(lambda results: results["running"] == 0)
        assert idle["waiting"] == 0

    in_session(server, test)


def test_a_deadline_ends_a_group_by_name(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        await one.post("/control/pause", {"mode": "abort"})
        late = asyncio.ensure_future(one.lines({**group("late"), "deadline_s": 0.3}, group("unlimited")))
        await asyncio.sleep(0.8)
        await one.post("/control/resume")
        results = await late
        assert results["late"]["error"].startswith("deadline") and len(results["unlimited"]["samples"]) == 1
        (running,) = (await one.lines({**long_groups(server, 1)[0], "deadline_s": 0.01})).values()
        assert running["error"].startswith("deadline")

    in_session(server, test)


# Updates.


def test_weights_from_disk_give_the_answers_of_the_new_model(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        requested = group("g", n=4, max_new_tokens=32)
        (before,) = await one.generate(requested)
        answer = await one.update(2)
        assert answer["version"] == server.version and answer["tensors"] == len(dict(model(2).named_parameters()))
        assert answer["probe_logprobs"] == pytest.approx(logprobs_of(model(2), PROBE).tolist(), abs=PARITY)
        assert answer["stall_s"] > 0 and answer["load_s"] > 0 and answer["generated"]["tokens"] > 0
        read_back = answer["read_back"]
        assert read_back["covered"] + len(read_back["uncovered"]) >= answer["tensors"]
        (after,) = await one.generate(requested)
        assert [sample["token_ids"] for sample in after] != [sample["token_ids"] for sample in before]
        assert max(largest_gap(requested["prompt"], sample, {server.version: 2}) for sample in after) <= PARITY

    in_session(server, test)


def test_the_fingerprint_is_that_of_the_published_weights(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.update(1)
        results = await one.get("/control/fingerprint")
        hashes = {name: tensor_hash(tensor.detach()) for name, tensor in model(1).named_parameters()}
        assert results["version"] == server.version
        assert results["tensors"].keys() <= hashes.keys()
        assert results["tensors"] == {name: hashes[name] for name in results["tensors"]}
        uncovered = {name.split(" ")[0] for name in results.get("uncovered", [])}
        assert results["tensors"].keys() | uncovered >= hashes.keys()

    in_session(server, test)


@pytest.mark.parametrize("mode", ["keep", "abort"])
def test_a_request_across_an_update_has_logprobs_of_both_weights(server: LiveServer, mode: str) -> None:
    """What was computed with the old weights is not used with the new ones."""
    cross_an_update(server, mode)


@slow_on(*EXTERNAL)
@pytest.mark.parametrize("mode", ["wait", "auto"])
def test_a_mode_of_update_that_every_engine_has_gives_logprobs_of_its_weights(server: LiveServer, mode: str) -> None:
    cross_an_update(server, mode)


def cross_an_update(server: LiveServer, mode: str) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        old = server.version
        if mode == "keep" and server.engine in CANNOT_KEEP:
            refused = await one.refusal("/control/update_weights", server.published(2, mode=mode))
            assert refused.status == 409 and "keep" in refused.message
            return
        requested = long_groups(server, 6, n=2)
        answers = asyncio.ensure_future(one.generate(*requested))
        await one.until(generating)
        await asyncio.sleep(0.1)
        await one.update(2, mode=mode)
        crossed = 0
        for sent, samples in zip(requested, await answers, strict=True):
            for sample in samples:
                assert sample["versions"] == sorted(sample["versions"]) and len(sample["versions"]) == length_of(server)
                assert set(sample["versions"]) <= {old, server.version}
                assert largest_gap(sent["prompt"], sample, {old: 1, server.version: 2}) <= PARITY
                crossed += len(set(sample["versions"])) == 2
        assert crossed == (0 if mode == "wait" else 12)

    in_session(server, test)


def test_staged_weights_are_served_at_their_commit(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        old, body = server.version, server.published(2)
        version = body["version"]
        assert await one.post("/control/stage_weights", body) == {"staged": version}
        (samples,) = await one.generate(group("before"))
        assert set(samples[0]["versions"]) == {old}
        commit = {"version": version, "probe": body["probe"], "mode": "auto"}
        done = await one.post("/control/commit_weights", commit)
        server.version, server.seed = version, 2
        assert (done["version"], done["tensors"]) == (version, len(dict(model(2).named_parameters())))
        assert await one.post("/control/commit_weights", commit) == done, "only the response was lost"
        refused = await one.refusal("/control/commit_weights", {"version": version + 1})
        assert refused.status == 410 and "was not staged" in refused.message
        (samples,) = await one.generate(group("after"))
        assert largest_gap(PROBE[:5], samples[0], {version: 2}) <= PARITY

    in_session(server, test)


# Weights that must not be served.


def flipped(body: dict[str, Any]) -> None:
    flip_a_byte(Path(body["folder"]), TENSOR)


def without_a_layer(body: dict[str, Any]) -> None:
    _change(body, lambda index: [info for info in index["tensors"] if ".layers.1." not in info["name"]])


def _change(body: dict[str, Any], tensors: Callable[[dict[str, Any]], list[Any]]) -> None:
    path = Path(body["folder"]) / "index.json"
    index = json.loads(path.read_bytes())
    path.write_text(json.dumps({**index, "tensors": tensors(index)}))


def of_another_run(body: dict[str, Any]) -> None:
    path = Path(body["folder"]) / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "run_id": "another"}))


def without_a_file(body: dict[str, Any]) -> None:
    next(Path(body["folder"]).glob("*.safetensors")).unlink()


def nowhere(body: dict[str, Any]) -> None:
    body["folder"] = str(Path(body["folder"]).with_name("v999999"))


FAULTS = {
    "a flipped byte": (flipped, f"tensor {TENSOR} (layer 1) is corrupted"),
    "a layer less": (without_a_layer, "layer 1: 11 tensors are missing: model.layers.1."),
}
UNREADABLE = {
    "another run": (of_another_run, "belongs to run another, and this is run "),
    "a file less": (without_a_file, "is missing: it was not published completely"),
    "no folder": (nowhere, "v999999"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_weights_are_refused_by_name_and_the_old_ones_stay(server: LiveServer, fault: str) -> None:
    check_refusal(server, *FAULTS[fault])


@slow_on(*EXTERNAL)
@pytest.mark.parametrize("fault", UNREADABLE)
def test_what_is_no_publication_of_the_run_is_refused_and_the_old_weights_stay(server: LiveServer, fault: str) -> None:
    check_refusal(server, *UNREADABLE[fault])


def check_refusal(server: LiveServer, damage: Callable[[dict[str, Any]], None], words: str) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        old, before = server.version, await one.get("/control/fingerprint")
        answers = asyncio.ensure_future(one.generate(*long_groups(server, 2)))
        await one.until(generating)
        body = server.published(2)
        damage(body)
        refused = await one.refusal("/control/update_weights", body)
        assert refused.status == 409 and words in refused.message, refused.message
        assert (await one.get("/health")) | {"status": "ok"} == await one.get("/health")
        assert await one.get("/control/fingerprint") == before
        for sent, samples in zip(long_groups(server, 2), await answers, strict=True):
            assert largest_gap(sent["prompt"], samples[0], {old: 1}) <= PARITY
        await one.update(2)
        (samples,) = await one.generate(group("after"))
        assert largest_gap(PROBE[:5], samples[0], {server.version: 2}) <= PARITY

    in_session(server, test)


def test_a_version_that_is_not_newer_is_refused_as_stale(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.update(1)
        for version in (server.version, server.version - 1):
            refused = await one.refusal("/control/update_weights", server.published(2, version))
            assert refused.status == 409 and "stale" in refused.message and str(server.version) in refused.message
        (samples,) = await one.generate(group("g"))
        assert largest_gap(PROBE[:5], samples[0], {server.version: 1}) <= PARITY

    in_session(server, test)


# Who may command.

CONTROL = [
    *(("POST", f"/control/{name}") for name in ("update_weights", "stage_weights", "commit_weights")),
    *(("POST", f"/control/{name}") for name in ("pause", "resume", "abort")),
    *(("GET", f"/control/{name}") for name in ("fingerprint", "statistics")),
    ("POST", "/generate"),
]


def test_control_routes_need_the_token_and_the_newest_attempt(server: LiveServer) -> None:
    strangers: tuple[tuple[dict[str, str], int], ...] = (
        ({}, 401),
        (call_headers(CONTROLLER, "guessed"), 401),
        (call_headers(Identity("rollout", 0, attempt=0), SECRET), 409),
    )

    async def test(one: ServerSession) -> None:
        await one.serve(1)
        async with aiohttp.ClientSession() as session:
            for method, path in CONTROL:
                for headers, status in strangers:
                    url = f"http://{one.address}{path}"
                    async with session.request(method, url, json={"ids": "all"}, headers=headers) as response:
                        assert response.status == status, (method, path, await response.text())
        for disguise in DISGUISES:
            for name in ("control/pause", "control/abort"):
                status = await status_of(one.address, "POST", disguise.format(name))
                assert 400 <= status < 500, (disguise, status)
        assert (await one.get("/health"))["status"] == "ok"

    in_session(server, test)


# The last one, as engines of others end with it.


def test_weights_of_another_model_are_detected_and_no_mixture_is_served(server: LiveServer) -> None:
    """What arrived is what was published, and still not what the trainer holds: only the probe can tell. The old
    weights serve on, or the server ends."""

    async def test(one: ServerSession) -> None:
        await one.serve(1)
        old = server.version
        body = server.published(2)
        body["probe"]["logprobs"][2] += 0.01
        refused = await one.refusal("/control/update_weights", body)
        assert "trainer and server compute different models" in refused.message
        (results,) = await one.outcomes(group("g"))
        if refused.status == 409:
            assert largest_gap(PROBE[:5], results[0], {old: 1}) <= PARITY
            return
        assert refused.status == 503 and isinstance(results, Exception)
        ends = time.monotonic() + 60
        while server.is_alive():
            assert time.monotonic() < ends
            await asyncio.sleep(0.05)
        (note,) = server.run.logs.glob("server-0*.failure.json")
        assert json.loads(note.read_bytes())["kind"] == f"damaged weights v{body['version']}"

    in_session(server, test)
