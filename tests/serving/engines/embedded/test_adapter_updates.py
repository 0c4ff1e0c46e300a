"""Adapters over HTTP: a run's versions, verified before they are served, and adapters by name."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest

from areal_like.models.characters import write_tokenizer
from areal_like.process.errors import HttpError
from areal_like.process.http import HttpClient
from areal_like.process.identity import Identity
from areal_like.weights.adapter import read_peft_folder
from areal_like.weights.probe import Probe
from tests.support.embedded_adapters import logprobs_by, published, with_peft, write_adapter
from tests.support.embedded_servers import PROMPT, SECRET, Client, group, over_http, slow, until
from tests.support.embedded_servers import published as published_whole
from tests.support.tiny_models import VOCAB, tiny_qwen3

UPDATE = "/control/update_weights"
BASE = "builtin:tiny"


def adapters(root: Path, *seeds: int) -> list[Path]:
    return [write_adapter(root / f"adapter-{seed}", tiny_qwen3(), seed) for seed in seeds]


def probe_of(folder: Path) -> Probe:
    return Probe(PROMPT, logprobs_by(with_peft(tiny_qwen3(), folder), PROMPT))


def assert_as_computed_by(model: Any, sample: dict[str, Any]) -> None:
    expected = logprobs_by(model, [*PROMPT, *sample["token_ids"]])[len(PROMPT) - 1 :]
    assert sample["logprobs"] == pytest.approx(expected, abs=1e-5)


def test_an_adapter_version_is_verified_by_hashes_and_probe(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        (folder,) = adapters(tmp_path, 1)
        base = (await client.call("GET", "/control/fingerprint"))["tensors"]
        with pytest.raises(HttpError, match="no weights by the run yet"):
            await client.call("POST", "/generate", {"groups": [group("g")]})
        probe = probe_of(folder)
        done = await client.call("POST", UPDATE, published(tmp_path, 4, folder, probe))
        assert (done["version"], done["tensors"], done["read_back"]) == (4, 28, {"covered": 28, "uncovered": []})
        assert done["probe_logprobs"] == pytest.approx(probe.logprobs, abs=1e-5)
        assert done["stall_s"] > 0 and done["load_s"] > 0
        assert (await client.call("GET", "/health"))["version"] == 4
        fingerprint = await client.call("GET", "/control/fingerprint")
        hashes = {info.name: info.hash for info in read_peft_folder(folder).infos}
        assert fingerprint == {"version": 4, "tensors": {**base, **hashes}, "uncovered": []}
        for sample in (await client.generate(group("g", n=4)))["g"]["samples"]:
            assert_as_computed_by(with_peft(tiny_qwen3(), folder), sample)
            assert set(sample["versions"]) == {4}

    over_http(test)


def test_running_groups_keep_their_adapter_and_new_groups_get_the_next(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        one, two = adapters(tmp_path, 1, 2)
        by_version = {1: with_peft(tiny_qwen3(), one), 2: with_peft(tiny_qwen3(), two)}
        await client.call("POST", UPDATE, published(tmp_path, 1, one))
        slow(client.engine)
        before = asyncio.ensure_future(client.generate(*[group(str(i), seed=i, max_new_tokens=55) for i in range(4)]))
        await until(lambda: client.engine.counts.tokens > 40)
        await client.call("POST", UPDATE, published(tmp_path, 2, two, probe_of(two)))
        after = asyncio.ensure_future(client.generate(*[group(str(i), seed=i, max_new_tokens=55) for i in range(4)]))
        await until(lambda: client.engine.num_running > 8)
        assert set(client.engine.adapters.loaded) == {"v1", "v2"}
        for version, lines in ((1, await before), (2, await after)):
            samples = [sample for line in lines.values() for sample in line["samples"]]
            for sample in samples:
                assert set(sample["versions"]) == {version}
                assert_as_computed_by(by_version[version], sample)
            assert any(len(sample["token_ids"]) == 55 for sample in samples)
        assert set(client.engine.adapters.loaded) == {"v2"}

    over_http(test)


def test_a_bad_adapter_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    async def refused(client: Client, body: dict[str, Any], *words: str) -> None:
        with pytest.raises(HttpError) as refusal:
            await client.call("POST", UPDATE, body)
        assert refusal.value.status == 409
        for word in words:
            assert word in refusal.value.message

    async def test(client: Client) -> None:
        one, two = adapters(tmp_path, 1, 2)
        await client.call("POST", UPDATE, published(tmp_path, 3, one))
        before = await client.generate(group("g"))

        await refused(client, published(tmp_path, 3, two), "version 3", "stale")

        body = published(tmp_path, 4, two)
        file = Path(body["folder"]) / "adapter_model.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        await refused(client, body, "version 4", "v_proj.lora_B.weight", "layer 1", "corrupted")

        body = published(tmp_path, 5, two)
        file = Path(body["folder"]) / "adapter_config.json"
        file.write_text(file.read_text().replace('"lora_alpha": 8', '"lora_alpha": 9'))
        await refused(client, body, "version 5", "adapter_config.json", "corrupted")

        shallow = write_adapter(tmp_path / "shallow", tiny_qwen3(num_hidden_layers=1), 1)
        await refused(client, published(tmp_path, 6, shallow), "version 6", "layer 1: 14 tensors are missing")

        other = published(tmp_path, 7, two, probe_of(one))
        await refused(client, other, "trainer and server compute different models")

        await refused(client, {**published(tmp_path, 8, two), "version": 9}, "version 8", "9")
        whole = {**published_whole(tmp_path, 10, tiny_qwen3(1)), "transport": "adapter"}
        await refused(client, whole, "version 10 of the weights is not an adapter")

        assert await client.generate(group("g")) == before
        assert set(client.engine.adapters.loaded) == {"v3"}
        await client.call("POST", UPDATE, published(tmp_path, 11, two))
        assert await client.generate(group("g")) != before

    over_http(test)


def test_full_weights_replace_an_adapter(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        (one,) = adapters(tmp_path, 1)
        await client.call("POST", UPDATE, published(tmp_path, 1, one))
        await client.call("POST", UPDATE, published_whole(tmp_path, 2, tiny_qwen3(1)))
        (sample,) = (await client.generate(group("g", n=1)))["g"]["samples"]
        assert set(sample["versions"]) == {2}
        assert_as_computed_by(tiny_qwen3(1), sample)

    over_http(test)


def test_a_newer_attempt_may_start_with_an_older_adapter(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        one, two = adapters(tmp_path, 1, 2)
        await client.call("POST", UPDATE, published(tmp_path, 7, one))
        async with HttpClient(Identity("rollout", 0, attempt=2), SECRET) as newer:
            with pytest.raises(HttpError, match="no weights by the run yet"):
                await newer.json("POST", client.address, "/generate", {"groups": [group("g")]})
            await newer.json("POST", client.address, UPDATE, published(tmp_path, 5, two, probe_of(two)))
            assert (await newer.json("GET", client.address, "/health"))["version"] == 5
            assert set(client.engine.adapters.loaded) == {"v5"}

    over_http(test)


def test_completions_use_the_adapter_that_they_name(tmp_path: Path) -> None:
    async def complete(client: Client, model: str) -> tuple[int, Any]:
        body = {"model": model, "prompt": PROMPT, "max_tokens": 6, "seed": 1, "return_token_ids": True, "logprobs": 1}
        return await client.open("POST", "/v1/completions", body)

    async def test(client: Client) -> None:
        one, two = adapters(tmp_path, 1, 2)
        for name, folder in (("one", one), ("team/two", two)):
            assert await client.call("POST", "/control/load_adapter", {"name": name, "folder": str(folder)}) == {
                "name": name,
                "tensors": 28,
            }
        models = (await client.open("GET", "/v1/models"))[1]["data"]
        assert [(model["id"], model.get("parent")) for model in models] == [
            (BASE, None),
            ("one", BASE),
            ("team/two", BASE),
        ]
        by_name = {BASE: tiny_qwen3(), "one": with_peft(tiny_qwen3(), one), "team/two": with_peft(tiny_qwen3(), two)}
        for (status, response), (name, model) in zip(
            await asyncio.gather(*[complete(client, name) for name in by_name]), by_name.items(), strict=True
        ):
            (choice,) = response["choices"]
            assert (status, response["model"]) == (200, name)
            sample = {"token_ids": choice["token_ids"], "logprobs": choice["logprobs"]["token_logprobs"]}
            assert_as_computed_by(model, sample)
        await client.call("POST", "/control/unload_adapter", {"name": "one"})
        status, response = await complete(client, "one")
        assert status == 404 and "'one' is not served here" in response["error"]["message"]
        with pytest.raises(HttpError, match="one is not loaded; loaded are team/two") as refusal:
            await client.call("POST", "/control/unload_adapter", {"name": "one"})
        assert refusal.value.status == 404

    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    write_tokenizer(tokenizer, VOCAB)
    over_http(test, tokenizer)


@pytest.mark.parametrize(
    ("name", "message"),
    [("v12", "version of the run"), (BASE, "cannot name"), ("two", "loaded already"), ("three", "is not an adapter")],
)
def test_bad_adapter_names_are_refused(tmp_path: Path, name: str, message: str) -> None:
    async def test(client: Client) -> None:
        (folder,) = adapters(tmp_path, 2)
        await client.call("POST", "/control/load_adapter", {"name": "two", "folder": str(folder)})
        at = tmp_path if name == "three" else folder
        with pytest.raises(HttpError, match=message) as refusal:
            await client.call("POST", "/control/load_adapter", {"name": name, "folder": str(at)})
        assert refusal.value.status == 409

    over_http(test)


def test_adapter_routes_need_the_runs_token(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for path in ("load_adapter", "unload_adapter"):
            status, _ = await client.open("POST", f"/control/{path}", {"name": "one", "folder": str(tmp_path)})
            assert status == 401

    over_http(test)


def test_an_adapter_does_not_change_the_model(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        model = client.engine.runner.model
        before = copy.deepcopy(model.state_dict())
        (one,) = adapters(tmp_path, 1)
        await client.call("POST", UPDATE, published(tmp_path, 1, one))
        await client.generate(group("g"))
        assert all(before[name].equal(tensor) for name, tensor in model.state_dict().items())

    over_http(test)
