"""Workers of one machine share the hashing of files in shared memory; stand-ins for vLLM's model and its loading."""

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from areal_like.serving.engines.base import WeightUpdate
from areal_like.serving.engines.external.engine_workers import EngineWorkers
from areal_like.serving.engines.vllm.plugin import packed_layers, worker
from areal_like.serving.engines.vllm.plugin.worker import WorkerExtension
from areal_like.weights import bucket_files
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.disk import publish_weights
from areal_like.weights.errors import BadWeights
from areal_like.weights.hash_shares import hash_share
from areal_like.weights.hashes import hash_of
from areal_like.weights.index import read_index
from tests.support.weights_group import model


class Machine:
    """Its workers, each with half of every matrix, as vLLM's loaders cut them."""

    def __init__(self, count: int) -> None:
        self.loaded: dict[int, dict[str, Tensor]] = {}
        self.extensions: list[Any] = [WorkerExtension() for _ in range(count)]
        for rank, extension in enumerate(self.extensions):
            extension.rank, extension.device = rank, torch.device("cpu")
            extension.model_runner = SimpleNamespace(
                get_model=nn.Module,
                reload_weights=lambda weights_iterator, rank=rank: self._load(rank, weights_iterator),
            )

    def _load(self, rank: int, tensors: Iterator[tuple[str, Tensor]]) -> None:
        self.loaded[rank] = {name: tensor.chunk(len(self.extensions))[rank].clone() for name, tensor in tensors}

    async def call(self, method: str, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(json.dumps(getattr(each, method)(*arguments))) for each in self.extensions]


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_layers, "_is_dense_on_cpu", lambda model: False)
    monkeypatch.setattr(worker, "repack_tied", lambda model: None)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Counter[threading.Thread]:
    """Bytes that each worker's thread has hashed."""
    counts, plain = Counter[threading.Thread](), hash_of

    def counted(dtype: str, shape: tuple[int, ...], content: Any) -> str:
        counts[threading.current_thread()] += len(content)
        return plain(dtype, shape, content)

    monkeypatch.setattr(bucket_files, "hash_of", counted)
    return counts


def published(root: Path, version: int = 3) -> WeightUpdate:
    folder = publish_weights(root, version, model(version).items(), None, "run-1", max_bucket_bytes=4000)
    return WeightUpdate(version, read_index(folder), folder)


async def placed(machine: Machine) -> EngineWorkers:
    workers = EngineWorkers("vLLM", machine.call)
    await workers.read_places()
    return workers


async def placed_apart(machine: Machine) -> EngineWorkers:
    """Each worker on a machine of its own."""
    for place, extension in zip(await machine.call("areal_place"), machine.extensions, strict=True):
        extension.areal_place = lambda place=place: place | {"machine": str(place["rank"])}
    return await placed(machine)


@pytest.mark.parametrize("count", [1, 2])
def test_each_worker_of_a_machine_hashes_its_part_of_a_version(
    count: int, shared_folder: Path, hashed: Counter[threading.Thread]
) -> None:
    machine, update = Machine(count), published(shared_folder)

    async def updated() -> None:
        workers = await placed(machine)
        await workers.stage(update)
        await workers.commit(update.version)

    asyncio.run(updated())
    total = sum(info.nbytes for info in update.index.tensors)
    assert sum(hashed.values()) == total and len(hashed) == count, "every byte once"
    largest = max(info.nbytes for info in update.index.tensors)
    assert max(hashed.values()) - min(hashed.values()) <= largest
    assert max(hashed.values()) < 0.55 * total or count == 1
    for rank, tensors in machine.loaded.items():
        assert all(torch.equal(tensors[name], whole.chunk(count)[rank]) for name, whole in model().items())


def test_workers_on_two_machines_hash_everything_on_each(
    shared_folder: Path, hashed: Counter[threading.Thread]
) -> None:
    machine, update = Machine(2), published(shared_folder)

    async def updated() -> None:
        workers = await placed_apart(machine)
        await workers.stage(update)
        await workers.commit(update.version)

    asyncio.run(updated())
    assert set(hashed.values()) == {sum(info.nbytes for info in update.index.tensors)} and len(hashed) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_a_file_on_disk_that_changes_after_it_was_verified_is_not_read_again(count: int, tmp_path: Path) -> None:
    machine, update = Machine(count), published(tmp_path)
    assert update.folder is not None
    files = list(update.folder.glob("bucket-*"))

    async def updated() -> None:
        workers = await placed_apart(machine)
        await workers.stage(update)
        for path in files:
            with path.open("r+b") as file:
                file.seek(-64, os.SEEK_END)
                file.write(bytes(64))
        await workers.commit(update.version)

    asyncio.run(updated())
    assert len(machine.loaded) == count
    for rank, tensors in machine.loaded.items():
        assert all(torch.equal(tensors[name], whole.chunk(count)[rank]) for name, whole in model().items())


def test_a_damaged_byte_in_the_part_of_another_worker_is_refused_by_all(shared_folder: Path) -> None:
    machine, update = Machine(2), published(shared_folder)
    assert update.folder is not None
    theirs = hash_share(update.index.tensors, 1, 2)
    name = max(theirs, key=lambda name: model()[name].nbytes)
    content = bytes(model()[name].contiguous().view(torch.uint8).numpy())
    (file,) = (path for path in update.folder.glob("bucket-*") if content in path.read_bytes())
    damaged = bytearray(file.read_bytes())
    damaged[bytes(damaged).index(content) + 9] ^= 1
    file.write_bytes(damaged)

    async def updated() -> list[dict[str, Any]]:
        workers = await placed(machine)
        with pytest.raises(BadWeights, match=rf"tensor {name}.* is corrupted"):
            await workers.stage(update)
        with pytest.raises(BadWeights):
            await workers.commit(update.version)
        return await machine.call("areal_commit", "3", "[0]")

    first, second = asyncio.run(updated())
    assert first == {"refused": "version 3 of the weights: worker 1 did not verify its share"}
    assert second == {"refused": "version 3 of the weights is not staged"}
    assert not machine.loaded


def test_files_of_another_index_than_the_one_that_was_sent_are_refused(tmp_path: Path) -> None:
    machine, update = Machine(1), published(tmp_path)
    publish_weights(tmp_path, 3, model().items(), None, "run-2", max_bucket_bytes=4000)

    async def updated() -> None:
        workers = await placed(machine)
        with pytest.raises(BadWeights, match="has another index than the one that was sent"):
            await workers.stage(update)

    asyncio.run(updated())


def test_nothing_is_applied_unless_each_worker_reports_that_it_verified(shared_folder: Path) -> None:
    machine, update = Machine(2), published(shared_folder)
    staged = machine.extensions[1].areal_staged
    machine.extensions[1].areal_staged = lambda: {key: value for key, value in staged().items() if key != "rank"}

    async def updated() -> None:
        workers = await placed(machine)
        await workers.stage(update)
        with pytest.raises(BadWeights, match="worker 1 did not verify its share"):
            await workers.commit(update.version)

    asyncio.run(updated())
    assert not machine.loaded


def test_shares_cover_all_tensors_once_and_are_about_equal() -> None:
    infos = [TensorInfo(f"layer.{number}", "bfloat16", (64, 10 + number % 7), "") for number in range(50)]
    for count in (1, 2, 3, 8):
        shares = [hash_share(infos, number, count) for number in range(count)]
        assert sorted(name for share in shares for name in share) == sorted(info.name for info in infos)
        sizes = [sum(info.nbytes for info in infos if info.name in share) for share in shares]
        assert max(sizes) - min(sizes) <= max(info.nbytes for info in infos)
