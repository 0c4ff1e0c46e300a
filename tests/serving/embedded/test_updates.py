"""New weights over HTTP: checked before and after the swap, in the middle of answers, and for a newer attempt."""

import asyncio
from pathlib import Path

import pytest

from areal_like.process.errors import HttpError
from areal_like.process.http import HttpClient
from areal_like.process.identity import Identity
from areal_like.serving.embedded.core.llm_engine import LLMEngine
from areal_like.weights.fingerprint import tensor_hash
from areal_like.weights.probe import Probe
from tests.support.embedded_servers import PROMPT, SECRET, Client, group, over_http, published, slow, turns, until
from tests.support.tiny_models import tiny_qwen3


def test_an_update_is_read_back_and_proved_by_the_probe(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        model = tiny_qwen3(1)
        probe = Probe(PROMPT, LLMEngine(tiny_qwen3(1)).logprobs(PROMPT))
        done = await client.call("POST", "/control/update_weights", published(tmp_path, 1, model, probe))
        assert (done["version"], done["tensors"]) == (1, len(dict(model.named_parameters())))
        assert done["probe_logprobs"] == pytest.approx(probe.logprobs, abs=1e-4)
        assert done["stall_s"] > 0 and done["load_s"] > 0 and done["dtype"] == "float32"
        found = await client.call("GET", "/control/fingerprint")
        hashes = {name: tensor_hash(tensor.detach()) for name, tensor in model.named_parameters()}
        assert found == {"version": 1, "tensors": hashes, "uncovered": []}
        assert done["read_back"] == {"covered": len(hashes), "uncovered": []}
        answers = await client.generate(group("g", n=3))
        done = await client.call("POST", "/control/update_weights", published(tmp_path, 2, model))
        tokens = sum(len(sample["token_ids"]) for sample in answers["g"]["samples"])
        assert done["generated"]["tokens"] == tokens and done["generated"]["busy_s"] > 0

    over_http(test)


def test_whose_answer_was_lost_is_answered_again_when_it_asks_again(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/stage_weights", published(tmp_path, 1, tiny_qwen3(1)))
        done = await client.call("POST", "/control/commit_weights", {"version": 1})
        assert await client.call("POST", "/control/commit_weights", {"version": 1}) == done
        with pytest.raises(HttpError, match="version 2 of the weights was not staged here") as refusal:
            await client.call("POST", "/control/commit_weights", {"version": 2})
        assert refusal.value.status == 410

    over_http(test)


def test_weights_that_must_not_be_served_are_refused_and_the_old_ones_stay(tmp_path: Path) -> None:
    async def refused(client: Client, body: dict[str, object], *words: str) -> None:
        with pytest.raises(HttpError) as refusal:
            await client.call("POST", "/control/update_weights", body)
        assert refusal.value.status == 409
        for word in words:
            assert word in refusal.value.message

    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 3, tiny_qwen3(1)))
        before = await client.generate(group("g"))
        print_before = await client.call("GET", "/control/fingerprint")

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
        await refused(client, other, "the trainer says -")

        await refused(client, {**published(tmp_path, 7, tiny_qwen3(2)), "version": 8}, "version 7", "8")
        await refused(client, {"version": 9, "folder": str(tmp_path / "v000009")}, "v000009")

        assert await client.generate(group("g")) == before
        assert await client.call("GET", "/control/fingerprint") == print_before
        assert (await client.call("POST", "/control/update_weights", published(tmp_path, 10, tiny_qwen3(2))))[
            "version"
        ] == 10

    over_http(test)


@pytest.mark.parametrize("mode", ["auto", "keep", "abort"])
def test_weights_change_under_running_sequences_which_go_on(tmp_path: Path, mode: str) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3(1)))
        await client.call("POST", "/control/pause")
        asked = asyncio.ensure_future(client.generate(*[group(str(i), max_new_tokens=55) for i in range(4)]))
        slow(client.engine)
        await client.call("POST", "/control/resume")
        await until(lambda: client.engine.counts.tokens > 40)
        told = {**published(tmp_path, 2, tiny_qwen3(2)), "mode": mode}
        await client.call("POST", "/control/update_weights", told)
        for line in (await asked).values():
            for sample in line["samples"]:
                assert sample["versions"] == sorted(sample["versions"])
                if len(sample["token_ids"]) == 55:
                    assert set(sample["versions"]) == {1, 2}

    over_http(test)


def test_an_update_that_waits_lets_what_runs_end_with_the_old_weights(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3(1)))
        slow(client.engine)
        running = asyncio.ensure_future(client.generate(*[group(str(i), max_new_tokens=30) for i in range(3)]))
        await until(lambda: client.engine.num_running > 0)
        told = {**published(tmp_path, 2, tiny_qwen3(2)), "mode": "wait"}
        updating = asyncio.ensure_future(client.call("POST", "/control/update_weights", told))
        await until(lambda: not client.engine.starts_groups)
        later = asyncio.ensure_future(client.generate(group("later")))
        assert (await updating)["version"] == 2
        for line in (await running).values():
            assert {version for sample in line["samples"] for version in sample["versions"]} == {1}
        for sample in (await later)["later"]["samples"]:
            assert set(sample["versions"]) == {2}

    over_http(test)


def test_a_pause_that_is_asked_for_during_an_update_outlasts_it(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3(1)))
        slow(client.engine)
        running = asyncio.ensure_future(client.generate(group("g", max_new_tokens=55)))
        await until(lambda: client.engine.num_running > 0)
        told = {**published(tmp_path, 2, tiny_qwen3(2)), "mode": "wait"}
        updating = asyncio.ensure_future(client.call("POST", "/control/update_weights", told))
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


def test_a_newer_attempt_ends_the_older_and_brings_older_weights(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 7, tiny_qwen3()))
        slow(client.engine)
        asked = asyncio.ensure_future(client.generate(*[group(str(i), max_new_tokens=59) for i in range(3)]))
        await until(lambda: client.engine.num_running > 0)
        async with HttpClient(Identity("rollout", 0, attempt=2), SECRET) as newer:
            with pytest.raises(HttpError, match="no weights by the run yet"):
                await newer.json("POST", client.address, "/generate", {"groups": [group("g")]})
            assert all("attempt 2" in line["error"] for line in (await asked).values())
            with pytest.raises(HttpError, match="attempt 1"):
                await client.call("GET", "/control/statistics")
            done = await newer.json(
                "POST", client.address, "/control/update_weights", published(tmp_path, 5, tiny_qwen3(1))
            )
            assert done["version"] == 5
            assert (await newer.json("GET", client.address, "/control/statistics"))["version"] == 5

    over_http(test)
