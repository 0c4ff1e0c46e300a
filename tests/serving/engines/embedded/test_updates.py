"""Weight updates over HTTP: verification, updates during generation, and newer attempts."""

import asyncio
from pathlib import Path

import pytest
import torch

from areal_like.process.errors import DamagedWeights, HttpError
from areal_like.process.http import HttpClient
from areal_like.process.identity import Identity
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.weights.fingerprint import tensor_hash
from areal_like.weights.probe import Probe
from tests.support.embedded_servers import PROMPT, SECRET, Client, group, over_http, published, slow, turns, until
from tests.support.tiny_models import tiny_qwen3

TENSOR = "model.layers.1.mlp.up_proj.weight"


def test_an_update_is_verified_by_hashes_and_probe(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        model = tiny_qwen3(1)
        probe = Probe(PROMPT, LLMEngine(tiny_qwen3(1)).logprobs(PROMPT))
        done = await client.call("POST", "/control/update_weights", published(tmp_path, 1, model, probe))
        assert (done["version"], done["tensors"]) == (1, len(dict(model.named_parameters())))
        assert done["probe_logprobs"] == pytest.approx(probe.logprobs, abs=1e-4)
        assert done["stall_s"] > 0 and done["load_s"] > 0 and done["dtype"] == "float32"
        fingerprint = await client.call("GET", "/control/fingerprint")
        hashes = {name: tensor_hash(tensor.detach()) for name, tensor in model.named_parameters()}
        assert fingerprint == {"version": 1, "tensors": hashes, "uncovered": []}
        assert done["read_back"] == {"covered": len(hashes), "uncovered": []}
        answers = await client.generate(group("g", n=3))
        done = await client.call("POST", "/control/update_weights", published(tmp_path, 2, model))
        tokens = sum(len(sample["token_ids"]) for sample in answers["g"]["samples"])
        assert done["generated"]["tokens"] == tokens and done["generated"]["busy_s"] > 0

    over_http(test)


def test_a_repeated_commit_gets_the_same_answer(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/stage_weights", published(tmp_path, 1, tiny_qwen3(1)))
        done = await client.call("POST", "/control/commit_weights", {"version": 1})
        assert await client.call("POST", "/control/commit_weights", {"version": 1}) == done
        with pytest.raises(HttpError, match="version 2 of the weights was not staged here") as refusal:
            await client.call("POST", "/control/commit_weights", {"version": 2})
        assert refusal.value.status == 410

    over_http(test)


def test_bad_weights_are_refused_and_the_old_ones_stay(tmp_path: Path) -> None:
    async def refused(client: Client, body: dict[str, object], *words: str) -> None:
        with pytest.raises(HttpError) as refusal:
            await client.call("POST", "/control/update_weights", body)
        assert refusal.value.status == 409
        for word in words:
            assert word in refusal.value.message

    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 3, tiny_qwen3(1)))
        before = await client.generate(group("g"))
        fingerprint_before = await client.call("GET", "/control/fingerprint")

        await refused(client, published(tmp_path, 3, tiny_qwen3(2)), "version 3", "stale")

        corrupted = published(tmp_path, 4, tiny_qwen3(2))
        file = sorted(Path(str(corrupted["folder"])).glob("*.safetensors"))[0]
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        await refused(client, corrupted, "version 4", "corrupted")

        shallow = published(tmp_path, 5, tiny_qwen3(2, num_hidden_layers=1))
        await refused(client, shallow, "layer 1", "missing")

        other = {
            **published(tmp_path, 6, tiny_qwen3(2)),
            "probe": {"token_ids": PROMPT, "logprobs": [-1.0, -2.0, -3.0]},
        }
        await refused(client, other, "the trainer has -")

        await refused(client, {**published(tmp_path, 7, tiny_qwen3(2)), "version": 8}, "version 7", "8")
        await refused(client, {"version": 9, "folder": str(tmp_path / "v000009")}, "v000009")

        assert await client.generate(group("g")) == before
        assert await client.call("GET", "/control/fingerprint") == fingerprint_before
        assert (await client.call("POST", "/control/update_weights", published(tmp_path, 10, tiny_qwen3(2))))[
            "version"
        ] == 10

    over_http(test)


@pytest.mark.parametrize("mode", ["auto", "keep", "abort"])
def test_running_sequences_continue_with_new_weights(tmp_path: Path, mode: str) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3(1)))
        await client.call("POST", "/control/pause")
        generating = asyncio.ensure_future(client.generate(*[group(str(i), max_new_tokens=55) for i in range(4)]))
        slow(client.engine)
        await client.call("POST", "/control/resume")
        await until(lambda: client.engine.counts.tokens > 40)
        body = {**published(tmp_path, 2, tiny_qwen3(2)), "mode": mode}
        await client.call("POST", "/control/update_weights", body)
        for line in (await generating).values():
            for sample in line["samples"]:
                assert sample["versions"] == sorted(sample["versions"])
                if len(sample["token_ids"]) == 55:
                    assert set(sample["versions"]) == {1, 2}

    over_http(test)


def test_a_waiting_update_lets_running_groups_end_with_the_old_weights(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3(1)))
        slow(client.engine)
        running = asyncio.ensure_future(client.generate(*[group(str(i), max_new_tokens=30) for i in range(3)]))
        await until(lambda: client.engine.num_running > 0)
        body = {**published(tmp_path, 2, tiny_qwen3(2)), "mode": "wait"}
        updating = asyncio.ensure_future(client.call("POST", "/control/update_weights", body))
        await until(lambda: not client.engine.starts_groups)
        later = asyncio.ensure_future(client.generate(group("later")))
        assert (await updating)["version"] == 2
        for line in (await running).values():
            assert {version for sample in line["samples"] for version in sample["versions"]} == {1}
        for sample in (await later)["later"]["samples"]:
            assert set(sample["versions"]) == {2}

    over_http(test)


def test_a_pause_requested_during_an_update_outlasts_it(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3(1)))
        slow(client.engine)
        running = asyncio.ensure_future(client.generate(group("g", max_new_tokens=55)))
        await until(lambda: client.engine.num_running > 0)
        body = {**published(tmp_path, 2, tiny_qwen3(2)), "mode": "wait"}
        updating = asyncio.ensure_future(client.call("POST", "/control/update_weights", body))
        await until(lambda: not client.engine.starts_groups)
        await client.call("POST", "/control/pause")
        assert (await updating)["version"] == 2
        assert (await client.open("GET", "/health"))[1]["status"] == "paused"
        steps = client.engine.counts.steps
        await turns(client)
        assert client.engine.counts.steps == steps and not running.done()
        await client.call("POST", "/control/resume")
        assert "samples" in (await running)["g"]

    over_http(test)


def test_a_newer_attempt_ends_older_requests_and_may_bring_older_weights(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 7, tiny_qwen3()))
        slow(client.engine)
        generating = asyncio.ensure_future(client.generate(*[group(str(i), max_new_tokens=59) for i in range(3)]))
        await until(lambda: client.engine.num_running > 0)
        async with HttpClient(Identity("rollout", 0, attempt=2), SECRET) as newer:
            with pytest.raises(HttpError, match="no weights by the run yet"):
                await newer.json("POST", client.address, "/generate", {"groups": [group("g")]})
            assert all("attempt 2" in line["error"] for line in (await generating).values())
            with pytest.raises(HttpError, match="attempt 1"):
                await client.call("GET", "/control/statistics")
            done = await newer.json(
                "POST", client.address, "/control/update_weights", published(tmp_path, 5, tiny_qwen3(1))
            )
            assert done["version"] == 5
            assert (await newer.json("GET", client.address, "/control/statistics"))["version"] == 5

    over_http(test)


def test_weights_that_are_damaged_in_this_process_end_the_server_and_name_the_tensor(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3(1)))
        await client.call("POST", "/control/stage_weights", published(tmp_path, 2, tiny_qwen3(2)))
        standby = client.engine.weights._standby
        assert standby is not None
        standby[TENSOR].view(torch.int32).flatten()[0] ^= 1
        with pytest.raises(HttpError, match=f"version 2 of the weights: tensor {TENSOR}") as refusal:
            await client.call("POST", "/control/commit_weights", {"version": 2})
        assert refusal.value.status == 503
        failure = await client.server.until_ended()
        assert isinstance(failure, DamagedWeights) and TENSOR in str(failure)
        with pytest.raises(HttpError, match="this server is broken"):
            await client.call("POST", "/generate", {"groups": [group("g")]})

    over_http(test)
