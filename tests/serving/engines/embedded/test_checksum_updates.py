"""Weight updates as on a GPU, where tensors are compared by checksums: no hash is computed while generation waits."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from areal_like.process.errors import HttpError
from areal_like.serving.engines.embedded.weights import update
from areal_like.weights import fingerprint
from areal_like.weights.collective import BroadcastHost
from areal_like.weights.disk import publish_weights
from areal_like.weights.flat_buckets import copy_weights
from areal_like.weights.index import dump_index, read_index
from tests.support.embedded_adapters import published as published_adapter
from tests.support.embedded_adapters import write_adapter
from tests.support.embedded_servers import RUN_ID, Client, group, over_http, published
from tests.support.stand_in_gpu import StandInGpu
from tests.support.tiny_models import tiny_qwen3
from tests.support.weights_group import BackgroundCall, rendezvous

UPDATE, STAGE, COMMIT = "/control/update_weights", "/control/stage_weights", "/control/commit_weights"
TENSOR = "model.layers.1.mlp.up_proj.weight"


class Hashed:
    """Counts the tensors that the server has hashed."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, tensors: Any) -> dict[str, str]:
        hashes = fingerprint.tensor_hashes(tensors)
        self.count += len(hashes)
        return hashes


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hashed]:
    """Trainer and server behave as if their tensors were on a GPU."""
    counting = Hashed()
    monkeypatch.setattr(fingerprint, "uses_checksums", lambda device: True)
    monkeypatch.setattr(update, "uses_checksums", lambda device: True)
    monkeypatch.setattr(update, "tensor_hashes", counting)
    yield counting


def without_checksums(body: dict[str, object]) -> dict[str, object]:
    """As an older trainer, or one on a CPU, publishes."""
    path = Path(str(body["folder"])) / "index.json"
    index = orjson.loads(path.read_bytes())
    for tensor in index["tensors"]:
        del tensor["checksum"]
    path.write_bytes(orjson.dumps(index))
    return body


def test_a_publication_from_a_gpu_has_checksums_and_one_from_a_cpu_has_none(tmp_path: Path, monkeypatch) -> None:
    tensors = [(name, tensor.detach()) for name, tensor in tiny_qwen3(1).named_parameters()]
    folder = publish_weights(tmp_path / "cpu", 1, tensors, None, RUN_ID)
    assert b"checksum" not in (folder / "index.json").read_bytes()
    monkeypatch.setattr(fingerprint, "uses_checksums", lambda device: True)
    of_gpu = read_index(publish_weights(tmp_path / "gpu", 1, tensors, None, RUN_ID))
    assert all(len(info.checksum) == 16 for info in of_gpu.tensors)
    stripped = of_gpu.buckets[0]._replace(tensors=[info._replace(checksum="") for info in of_gpu.tensors])
    assert of_gpu._replace(buckets=[stripped]) == read_index(folder)


def test_an_update_with_checksums_hashes_nothing_on_the_server(tmp_path: Path, hashed: Hashed) -> None:
    async def test(client: Client) -> None:
        body = published(tmp_path, 1, tiny_qwen3(1))
        done = await client.call("POST", UPDATE, body)
        assert done["version"] == 1 and done["read_back"]["uncovered"] == [] and hashed.count == 0
        hashes = {info.name: info.hash for info in read_index(Path(str(body["folder"]))).tensors}
        assert (await client.call("GET", "/control/fingerprint"))["tensors"] == hashes

    over_http(test)


def test_without_published_checksums_staged_weights_are_read_back_once(tmp_path: Path, hashed: Hashed) -> None:
    async def test(client: Client) -> None:
        model = tiny_qwen3(1)
        await client.call("POST", STAGE, without_checksums(published(tmp_path, 1, model)))
        assert hashed.count == len(dict(model.named_parameters()))
        hashed.count = 0
        assert (await client.call("POST", COMMIT, {"version": 1}))["version"] == 1 and hashed.count == 0

    over_http(test)


def test_staged_weights_with_another_checksum_are_refused(tmp_path: Path, hashed: Hashed) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", UPDATE, published(tmp_path, 1, tiny_qwen3(1)))
        before = await client.generate(group("g"))
        body = published(tmp_path, 2, tiny_qwen3(2))
        path = Path(str(body["folder"])) / "index.json"
        index = orjson.loads(path.read_bytes())
        index["tensors"][3]["checksum"] = "0" * 16
        path.write_bytes(orjson.dumps(index))
        with pytest.raises(HttpError, match=f"{index['tensors'][3]['name']}.*published with {'0' * 16}"):
            await client.call("POST", STAGE, body)
        assert await client.generate(group("g")) == before

    over_http(test)


@pytest.mark.parametrize("has_checksums", [True, False])
def test_weights_damaged_after_staging_are_found_by_their_checksum(
    tmp_path: Path, hashed: Hashed, has_checksums: bool
) -> None:
    async def test(client: Client) -> None:
        body = published(tmp_path, 2, tiny_qwen3(2))
        await client.call("POST", STAGE, body if has_checksums else without_checksums(body))
        staged = dict(client.engine.weights.staged())
        staged[TENSOR].view(torch.int32).flatten()[0] ^= 1
        with pytest.raises(HttpError, match=f"version 2 of the weights: tensor {TENSOR}") as refusal:
            await client.call("POST", COMMIT, {"version": 2})
        assert refusal.value.status == 503

    over_http(test)


def test_an_adapter_in_use_is_compared_by_checksums(tmp_path: Path, hashed: Hashed, monkeypatch) -> None:
    folder = write_adapter(tmp_path / "adapter", tiny_qwen3(), 1)

    async def test(client: Client) -> None:
        assert (await client.call("POST", UPDATE, published_adapter(tmp_path, 1, folder)))["version"] == 1
        assert hashed.count == 0
        make = client.engine.adapters.make

        def damaged(*given: Any) -> Any:
            adapter = make(*given)
            next(iter(adapter.layers.values())).low[0, 0] += 1
            return adapter

        monkeypatch.setattr(client.engine.adapters, "make", damaged)
        with pytest.raises(HttpError, match="version 2 of the weights: tensor base_model"):
            await client.call("POST", UPDATE, published_adapter(tmp_path, 2, folder))

    over_http(test)


@pytest.mark.parametrize("damaged", [False, True])
def test_weights_that_a_gpu_sent_without_hashes_are_verified_on_a_cpu_by_their_checksums(
    damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, host = StandInGpu(monkeypatch), BroadcastHost("127.0.0.1", 0)
    of_trainer = dict(tiny_qwen3(1).named_parameters())
    tensors = gpu.put({name: tensor.detach() for name, tensor in of_trainer.items()})
    weights = copy_weights(tensors.items(), stays_on_gpu=True).hashed(1, None, RUN_ID)
    at = rendezvous(host, 2, "v1.s", timeout_s=60.0)
    body = {"version": 1, "folder": None, "probe": None, "transport": "collective", "index": dump_index(weights.index)}

    def send() -> None:
        with host.open(at) as joined:
            joined.join()
            for content in weights.contents:
                joined.send(content)

    async def test(client: Client) -> None:
        sending = BackgroundCall(send)
        await client.call("POST", STAGE, {**body, "meeting": at._asdict(), "mode": "auto"})
        assert await asyncio.to_thread(sending.wait) is None
        if damaged:
            dict(client.engine.weights.staged())[TENSOR].view(torch.int32).flatten()[0] ^= 1
            with pytest.raises(HttpError, match=f"version 1 of the weights: tensor {TENSOR}"):
                await client.call("POST", COMMIT, {"version": 1})
            return
        assert (await client.call("POST", COMMIT, {"version": 1}))["version"] == 1
        served = dict(client.engine.weights.tensors())
        assert all(torch.equal(served[name], tensor) for name, tensor in of_trainer.items())

    over_http(test)
    host.close()
