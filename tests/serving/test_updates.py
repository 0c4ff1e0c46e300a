"""Weight updates of an external engine: checks before, verification after, waiting groups."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
import torch

from areal_like.process.errors import HttpError
from areal_like.process.http import HttpClient
from areal_like.process.identity import Identity
from areal_like.serving.engines.base import EngineGone, SwapResult, Verification
from areal_like.weights.errors import BadWeights
from areal_like.weights.fingerprint import tensor_hash
from tests.support.external_server import (
    PROMPT,
    SECRET,
    Client,
    TinyEngine,
    check,
    group,
    logprobs_of,
    published,
    until,
    version_in,
    with_server,
)
from tests.support.tiny_models import tiny_qwen3

UPDATE = "/control/update_weights"
NO_END = {"min_new_tokens": 40, "max_new_tokens": 40}


def has_made(engine: TinyEngine, tokens: int, asking: "asyncio.Task[Any]") -> bool:
    """So many tokens in all, or all requested ones."""
    return engine.tokens >= tokens or asking.done()


def same(version: int) -> int:
    return version


async def refusal(client: Client, path: str, body: dict[str, Any]) -> HttpError:
    with pytest.raises(HttpError) as refused:
        await client.call("POST", path, body)
    return refused.value


def test_nothing_is_served_before_the_first_weights(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        assert (await refusal(client, "/generate", {"groups": []})).status == 503
        health = await client.call("GET", "/health")
        assert (health["status"], health["version"], health["engine"]) == ("ok", -1, "vllm")
        await client.update(tmp_path, 0, 1)
        assert (await client.call("GET", "/health"))["version"] == 0

    with_server(tmp_path, test)


def test_an_update_is_verified_by_hashes_and_the_probe(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        done = await client.update(tmp_path, 1, 1)
        model = tiny_qwen3(1)
        count = len(dict(model.named_parameters()))
        assert (done["version"], done["tensors"], done["read_back"]["covered"]) == (1, count, count)
        assert len(done["probe_logprobs"]) == len(PROMPT) - 1 and done["dtype"] == "float32"
        results = await client.call("GET", "/control/fingerprint")
        hashes = {name: tensor_hash(tensor.detach()) for name, tensor in model.named_parameters()}
        assert results == {"version": 1, "tensors": hashes, "uncovered": []}
        answers = await client.generate(group("g", n=3))
        done = await client.update(tmp_path, 2, 2)
        tokens = sum(len(sample["token_ids"]) for sample in answers["g"]["samples"])
        assert done["generated"]["tokens"] == tokens and done["generated"]["busy_s"] > 0

    with_server(tmp_path, test)


@pytest.mark.parametrize(
    ("mode", "can_keep"),
    [
        *(("keep", True), ("wait", True), ("abort", True), ("auto", True)),
        *(("wait", False), ("abort", False), ("auto", False)),
    ],
)
def test_answers_cross_updates_and_every_token_has_its_version(tmp_path: Path, mode: str, can_keep: bool) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        asking = asyncio.create_task(client.generate(*(group(f"g{n}", n=2, seed=n, **NO_END) for n in range(4))))
        client.engine.log.clear()
        for version in (2, 3):
            await until(lambda: len(client.engine.in_flight) > 0 or asking.done())
            enough = client.engine.tokens + 8
            await until(partial(has_made, client.engine, enough, asking))
            await client.update(tmp_path, version, version, mode=mode)
        later = await client.generate(group("later"))
        results = await asking
        crossed = 0
        for line in [*results.values(), *later.values()]:
            for sample in line["samples"]:
                check(sample, same)
                versions = sample["versions"]
                assert versions == sorted(versions)
                crossed += len(set(versions)) > 1
        assert {version for sample in later["later"]["samples"] for version in sample["versions"]} == {3}
        assert (crossed > 0) == (mode != "wait")
        paused = "pause" in client.engine.log
        assert paused == (mode == "keep" or (mode == "auto" and can_keep))

    with_server(tmp_path, test, can_keep=can_keep, token_s=0.01)


def test_keep_is_refused_without_versions_per_token_and_nothing_is_loaded(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        response = await refusal(client, "/control/update_weights", published(tmp_path, 2, 2) | {"mode": "keep"})
        assert response.status == 409 and "cannot keep requests" in response.message
        assert client.engine.version == 1

    with_server(tmp_path, test, can_keep=False)


def test_invalid_weights_are_never_sent_to_the_engine(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        path = "/control/update_weights"
        await client.update(tmp_path, 3, 1)
        before = await client.generate(group("g"))
        response = await refusal(client, path, published(tmp_path, 3, 2))
        assert response.status == 409 and "version 3" in response.message and "stale" in response.message

        corrupted = published(tmp_path, 4, 2)
        file = sorted(Path(corrupted["folder"]).glob("*.safetensors"))[0]
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        assert "model.norm.weight" in (await refusal(client, path, corrupted)).message

        response = await refusal(client, path, published(tmp_path, 5, 2) | {"version": 6})
        assert "is of version 5 and not 6" in response.message
        assert (
            "not a complete publication" in (await refusal(client, path, corrupted | {"folder": str(tmp_path)})).message
        )
        assert (await refusal(client, path, {"version": 6, "folder": None})).status == 400
        assert client.engine.log.count("commit 3") == 1 and client.engine.version == 3
        assert await client.generate(group("g")) == before

    with_server(tmp_path, test)


def test_a_refusal_of_weights_is_reported_even_if_the_engine_cannot_discard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Client) -> None:
        for fault, status in ((BadWeights("tensor model.norm.weight is corrupted"), 409), (EngineGone("ended"), 503)):
            monkeypatch.setattr(client.engine, "stage", AsyncMock(side_effect=fault))
            discard = AsyncMock(side_effect=EngineGone("no answer"))
            monkeypatch.setattr(client.engine, "discard", discard)
            response = await refusal(client, UPDATE, published(tmp_path, 1, 1))
            assert response.status == status and str(fault) in response.message
            assert discard.await_count == 1

    with_server(tmp_path, test)


def test_a_publication_without_a_layer_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    from areal_like.weights.disk import publish_weights

    async def test(client: Client) -> None:
        shallow = tiny_qwen3(2, num_hidden_layers=1)
        tensors = [(name, tensor.detach()) for name, tensor in shallow.named_parameters()]
        folder = publish_weights(tmp_path / "weights", 1, tensors, None, "run-1")
        response = await refusal(client, "/control/update_weights", {"version": 1, "folder": str(folder)})
        assert response.status == 409 and "layer 1" in response.message and "missing" in response.message
        assert client.engine.version == -1

    with_server(tmp_path, test)


def damage_weights(engine: TinyEngine) -> None:
    """One number, as a load that goes wrong half-way leaves it."""
    with torch.no_grad():
        engine.model.model.layers[1].mlp.up_proj.weight[0, 0] += 1


@pytest.mark.parametrize("can_keep", [True, False])
def test_a_wrong_tensor_is_named_and_ends_a_server_that_serves_nothing_more(tmp_path: Path, can_keep: bool) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        client.engine.after_commit = damage_weights
        asking = asyncio.create_task(client.generate(group("g", **NO_END)))
        await until(lambda: len(client.engine.in_flight) == 1)
        response = await refusal(client, "/control/update_weights", published(tmp_path, 2, 2))
        words = "version 2 of the weights: tensor model.layers.1.mlp.up_proj.weight (layer 1)"
        assert response.status == 503 and words in response.message
        fatal = client.server.fatal.result()
        assert fatal.kind == "damaged weights v2" and words in str(fatal)
        with pytest.raises(aiohttp.ClientError):  # no answer: another server is asked
            await asking
        assert (await client.call("GET", "/health"))["status"] == "broken"
        for path, body in [("/generate", {"groups": []}), ("/control/update_weights", published(tmp_path, 3, 3))]:
            again = await refusal(client, path, body)
            assert again.status == 503 and "up_proj" in again.message

    with_server(tmp_path, test, can_keep=can_keep, token_s=0.02)


def test_the_probe_detects_a_model_that_differs_from_the_trainer(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        body = published(tmp_path, 1, 1)
        probe = {"token_ids": PROMPT, "logprobs": [-1.0, -2.0, -3.0]}
        response = await refusal(client, "/control/update_weights", body | {"probe": probe})
        assert response.status == 503 and "different models" in response.message
        assert client.server.fatal.result().kind == "damaged weights v1"

    with_server(tmp_path, test)


@pytest.mark.parametrize("swaps", [False, True])
def test_old_computation_is_detected_though_the_noise_hides_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    """The noise allows any of these answers; the server's is that for the weights before, in every digit. `swaps`: the
    engine computes the probe in its swap."""
    hidden = {"dtype": "bfloat16", "noise": [10.0, 50.0]}

    def probed(version: int, change: float) -> dict[str, Any]:
        logprobs = [each + change for each in logprobs_of(tiny_qwen3(1), PROMPT)]
        return published(tmp_path, version, version) | {"probe": {"token_ids": PROMPT, "logprobs": logprobs, **hidden}}

    async def test(client: Client) -> None:
        await client.call("POST", UPDATE, probed(1, 0.0))
        await client.call("POST", UPDATE, probed(2, 6.0))
        stale = await client.engine.logprobs(PROMPT)
        if swaps:
            swapped = SwapResult(0.0, Verification(), stale)
            monkeypatch.setattr(client.engine, "commit", AsyncMock(return_value=swapped))
        monkeypatch.setattr(client.engine, "logprobs", AsyncMock(return_value=stale))
        response = await refusal(client, UPDATE, probed(3, 12.0))
        assert response.status == 503 and "the server computes with old weights" in response.message
        assert client.server.fatal.result().kind == "damaged weights v3"

    with_server(tmp_path, test)


def test_a_load_that_fails_half_way_ends_the_process(tmp_path: Path) -> None:
    def fail(engine: TinyEngine) -> None:
        raise RuntimeError("a worker died")

    async def test(client: Client) -> None:
        client.engine.after_commit = fail
        response = await refusal(client, "/control/update_weights", published(tmp_path, 1, 1))
        assert response.status == 503 and "failed half-way: a worker died" in response.message
        assert "a worker died" in str(client.server.fatal.result())

    with_server(tmp_path, test)


def test_weights_are_staged_during_generation_and_swapped_on_commit(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        body = published(tmp_path, 2, 2)
        assert await client.call("POST", "/control/stage_weights", body) == {"staged": 2}
        results = await client.generate(group("g"))
        assert set(results["g"]["samples"][0]["versions"]) == {1}
        response = await refusal(client, "/control/commit_weights", {"version": 3})
        assert response.status == 410 and "was not staged" in response.message
        done = await client.call("POST", "/control/commit_weights", {"version": 2, "mode": "wait"})
        assert done["version"] == 2 and done["read_back"]["uncovered"] == []
        assert await client.call("POST", "/control/commit_weights", {"version": 2}) == done, "its answer was lost"
        results = await client.generate(group("g"))
        check(results["g"]["samples"][0], same)
        assert set(results["g"]["samples"][0]["versions"]) == {2}

    with_server(tmp_path, test)


def test_a_pause_before_an_update_remains_after_it(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        asking = asyncio.create_task(client.generate(group("g", **NO_END)))
        await until(lambda: len(client.engine.in_flight) == 1)
        await client.call("POST", "/control/pause", {"mode": "keep"})
        await client.update(tmp_path, 2, 2)
        assert (await client.call("GET", "/health"))["status"] == "paused"
        assert not client.engine._runs.is_set() and not asking.done()
        await client.call("POST", "/control/resume")
        check((await asking)["g"]["samples"][0], same)

    with_server(tmp_path, test, can_keep=True, token_s=0.02)


def test_a_newer_attempt_ends_older_groups_and_may_load_older_weights(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 5, 5)
        await client.call("POST", "/control/pause", {"mode": "wait"})
        asking = asyncio.create_task(client.generate(group("old", **NO_END)))
        await until(lambda: client.server.queue.waiting == 1)
        async with HttpClient(Identity("rollout", 0, attempt=2), SECRET) as newer:
            response = await newer.json("POST", client.address, "/control/update_weights", published(tmp_path, 2, 2))
            assert response["version"] == 2
        assert "of attempt 1" in (await asking)["old"]["error"]
        health = await client.call("GET", "/health")
        assert (health["status"], health["version"]) == ("ok", 2)
        assert (await refusal(client, "/control/pause", {})).status == 409

    with_server(tmp_path, test)


def loaded(client: Client) -> set[int]:
    return {version_in(name) for name in client.engine.adapters}


def publish_tiny_adapter(root: Path, version: int, value: float = 1) -> dict[str, Any]:
    from areal_like.weights.adapter import publish_adapter

    names = [f"base_model.model.model.layers.{layer}.self_attn.q_proj" for layer in range(2)]
    sides = {"A": torch.full((2, 32), value), "B": torch.zeros(32, 2)}
    tensors = [(f"{name}.lora_{side}.weight", tensor) for name in names for side, tensor in sides.items()]
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    folder = publish_adapter(root / "adapters", version, tensors, config, None, "run-1")
    return {"version": version, "folder": str(folder), "transport": "adapter"}


def test_new_groups_take_the_newest_adapter_and_old_ones_end_on_theirs(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        path = "/control/update_weights"
        done = await client.call("POST", path, publish_tiny_adapter(tmp_path, 1))
        assert done["version"] == 1 and done["tensors"] == 4 and done["stall_s"] == 0
        asking = asyncio.create_task(client.generate(group("old", n=2, **NO_END)))
        await until(lambda: len(client.engine.in_flight) == 1)
        await client.call("POST", path, publish_tiny_adapter(tmp_path, 2))
        new = (await client.generate(group("new")))["new"]["samples"][0]
        assert loaded(client) == {1, 2} and not asking.done()
        await client.call("POST", "/control/pause", {"mode": "abort"})
        await client.call("POST", "/control/resume")
        for sample in (await asking)["old"]["samples"]:
            assert set(sample["versions"]) == {1}
            check(sample, lambda version: 100 + version)
        assert set(new["versions"]) == {2}
        check(new, lambda version: 100 + version)
        await until(lambda: loaded(client) == {2})
        stale = await refusal(client, path, publish_tiny_adapter(tmp_path, 2))
        assert stale.status == 409 and "stale" in stale.message

    with_server(tmp_path, test, token_s=0.02)


def test_a_third_adapter_waits_until_no_group_uses_the_first(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        path = "/control/update_weights"
        await client.call("POST", path, publish_tiny_adapter(tmp_path, 1))
        asking = asyncio.create_task(client.generate(group("old", **NO_END)))
        await until(lambda: len(client.engine.in_flight) == 1)
        await client.call("POST", path, publish_tiny_adapter(tmp_path, 2))
        third = asyncio.create_task(client.call("POST", path, publish_tiny_adapter(tmp_path, 3)))
        results = await asking
        assert set(results["old"]["samples"][0]["versions"]) == {1}
        assert (await third)["version"] == 3
        unloaded, loads = ([line for line in client.engine.log if line.startswith(what)] for what in ("unload", "load"))
        assert unloaded[0].startswith("unload v1-") and loads[2].startswith("load v3-")
        assert client.engine.log.index(unloaded[0]) < client.engine.log.index(loads[2])

    with_server(tmp_path, test, token_s=0.01)
