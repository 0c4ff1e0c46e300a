"""Of weights that are sent to the GPUs of one server each worker keeps a share, and passes it to the others when they
are applied: two workers in threads, with stand-ins for NCCL and for the store of the engine."""

import asyncio
import json
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from areal_like.serving.engines.base import NotStaged, WeightUpdate
from areal_like.serving.engines.external.engine_workers import EngineWorkers
from areal_like.serving.engines.external.plugin import exchange
from areal_like.serving.engines.external.plugin.background_job import GROUP_BROKEN
from areal_like.serving.engines.sglang.plugin.calls import staged_group
from areal_like.serving.engines.vllm.plugin import packed_layers, worker
from areal_like.serving.engines.vllm.plugin.worker import WorkerExtension
from areal_like.weights import bucket_files
from areal_like.weights.buckets import TensorInfo, file_header, file_order
from areal_like.weights.disk import publish_weights
from areal_like.weights.errors import BadWeights
from areal_like.weights.group_server import KeyValueStore
from areal_like.weights.hash_shares import hash_share
from areal_like.weights.index import read_index
from tests.serving.engines.sglang.test_worker import Schedulers
from tests.support.gpu_transfers import StandIn, replace_nccl
from tests.support.weights_group import BackgroundCall, flat, model

pytestmark = pytest.mark.timeout(300)
TOTAL = sum(tensor.nbytes for tensor in model().values())
LARGEST = max(tensor.nbytes for tensor in model().values())


class TwoSchedulers(Schedulers):
    """SGLang's."""

    def loaded(self, rank: int, version: int) -> dict[str, Tensor]:
        assert self.workers[rank].call("areal_meet", "") == {}
        taken = self.workers[rank].take(staged_group(version))
        assert taken is not None
        return dict(taken)

    def kept(self, rank: int) -> dict[str, Tensor]:
        ((_, tensors),) = self.workers[rank]._staged.values()
        return tensors


class TwoExtensions(Schedulers):
    """vLLM's workers."""

    def __init__(self) -> None:
        super().__init__()
        self._loaded: dict[int, dict[str, Tensor]] = {}
        self.extensions: list[Any] = [WorkerExtension() for _ in range(2)]
        for rank, extension in enumerate(self.extensions):
            extension.rank, extension.device = rank, torch.device("cpu")
            extension.model_runner = SimpleNamespace(
                get_model=nn.Module,
                reload_weights=lambda weights_iterator, rank=rank: self._loaded.update({rank: dict(weights_iterator)}),
            )

    async def _call(self, method: str, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(json.dumps(getattr(each, method)(*arguments))) for each in self.extensions]

    def loaded(self, rank: int, version: int) -> dict[str, Tensor]:
        assert self.extensions[rank].areal_commit(str(version), "[0, 1]") == {}
        return self._loaded[rank]

    def kept(self, rank: int) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = self.extensions[rank]._areal.staged.tensors
        return tensors


@pytest.fixture(params=[TwoSchedulers, TwoExtensions])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(packed_layers, "_is_dense_on_cpu", lambda model: False)
    monkeypatch.setattr(worker, "repack_tied", lambda model: None)
    replace_nccl(monkeypatch)
    found = request.param()
    asyncio.run(found.calls.read_places())
    yield found
    for each in getattr(found, "extensions", ()):
        each._areal.group.leave()
    found.close()


@pytest.fixture(autouse=True)
def engine_store(monkeypatch: pytest.MonkeyPatch) -> None:
    stores: dict[str, KeyValueStore] = defaultdict(KeyValueStore)
    monkeypatch.setattr(exchange, "EngineStore", stores.__getitem__)


def in_both(work: Callable[[int], Any]) -> list[Any]:
    """The results of two threads."""
    calls = [BackgroundCall(partial(work, rank)) for rank in range(2)]
    return [call.wait() for call in calls]


def passed_on(nccl: type[StandIn]) -> list[StandIn]:
    """The group of the workers."""
    return [member for member in nccl.made if member.world == 2]


def test_each_worker_keeps_a_share_and_gets_the_others_when_they_are_applied(server: Any) -> None:
    update_once(server, 1)
    update_once(server, 2)
    members = passed_on(StandIn)
    assert [member.rank for member in sorted(members, key=lambda each: each.rank)] == [0, 1], "kept over versions"
    assert sum(member.sent_bytes for member in members) == 2 * TOTAL, "every byte is passed on once"


def update_once(server: Any, version: int) -> None:
    server.update(flat(version), "nccl")
    shares = [server.kept(rank) for rank in range(2)]
    sizes = [sum(tensor.nbytes for tensor in share.values()) for share in shares]
    assert sum(sizes) == TOTAL and not shares[0].keys() & shares[1].keys()
    assert abs(sizes[0] - sizes[1]) <= LARGEST
    for loaded in in_both(lambda rank: server.loaded(rank, version)):
        assert loaded.keys() == model().keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in model(version).items())


def test_without_nccl_each_worker_keeps_all(server: Any) -> None:
    server.update(flat(1), "gloo")
    assert all(server.kept(rank).keys() == model().keys() for rank in range(2))
    in_both(lambda rank: server.loaded(rank, 1))
    assert not passed_on(StandIn)


def test_a_worker_applies_nothing_unless_the_others_verified_their_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed_layers, "_is_dense_on_cpu", lambda model: False)
    replace_nccl(monkeypatch)
    server = TwoExtensions()
    asyncio.run(server.calls.read_places())
    server.update(flat(1), "nccl")
    server.calls._verified = [0]
    with pytest.raises(BadWeights, match="version 1 of the weights: worker 1 did not verify its share"):
        asyncio.run(server.calls.commit(1))
    assert not any(member.sent_bytes for member in passed_on(StandIn))
    for each in server.extensions:
        each._areal.group.leave()
    server.close()


@pytest.fixture
def extensions(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoExtensions]:
    monkeypatch.setattr(packed_layers, "_is_dense_on_cpu", lambda model: False)
    monkeypatch.setattr(worker, "repack_tied", lambda model: None)
    found = TwoExtensions()
    asyncio.run(found.calls.read_places())
    yield found
    for each in found.extensions:
        each._areal.exchange.leave()
    found.close()


def in_files(root: Path, version: int) -> WeightUpdate:
    folder = publish_weights(root, version, model(version).items(), None, "run-1", 4000)
    return WeightUpdate(version, read_index(folder), folder)


def test_of_files_outside_of_shared_memory_each_worker_reads_a_share(
    extensions: TwoExtensions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    plain = bucket_files._read_part

    def counted(file: Any, size: int) -> Any:
        read.append(size)
        return plain(file, size)

    monkeypatch.setattr(bucket_files, "_read_part", counted)
    for version in (1, 2):
        read.clear()
        update = in_files(tmp_path, version)
        asyncio.run(extensions.calls.stage(update, 60.0))
        shares = [extensions.kept(rank).keys() for rank in range(2)]
        assert not shares[0] & shares[1] and shares[0] | shares[1] == model().keys()
        headers = sum(len(file_header(file_order(bucket.tensors))) for bucket in update.index.buckets)
        assert sum(read) == TOTAL + 2 * headers
        for each in in_both(lambda rank, version=version: extensions.loaded(rank, version)):  # type: ignore[misc]
            assert each.keys() == model().keys()
            assert all(torch.equal(each[name], tensor) for name, tensor in model(version).items())


def test_a_worker_holds_one_bucket_at_a_time(
    extensions: TwoExtensions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = in_files(tmp_path, 1)
    bucket_of = {info.name: bucket.file for bucket in update.index.buckets for info in bucket.tensors}
    assert len(update.index.buckets) > 2
    held: list[set[str]] = []
    made: dict[int, list[tuple[str, weakref.ref[Tensor]]]] = defaultdict(list)
    plain = exchange._content

    def content(info: TensorInfo, *args: Any) -> Tensor:
        tensor, mine = plain(info, *args), made[threading.get_ident()]
        mine.append((bucket_of[info.name], weakref.ref(tensor)))
        held.append(buckets_of(mine, bucket_of[info.name]))
        return tensor

    def buckets_of(mine: list[tuple[str, weakref.ref[Tensor]]], newest: str) -> set[str]:
        """A thread of gloo lets go of a tensor a moment after it was passed on."""
        ends = time.monotonic() + 10
        while (found := {bucket for bucket, each in mine if each() is not None}) != {newest}:
            if time.monotonic() > ends:
                break
            time.sleep(0.001)
        return found

    monkeypatch.setattr(exchange, "_content", content)
    asyncio.run(extensions.calls.stage(update, 60.0))
    in_both(lambda rank: extensions.loaded(rank, 1))
    assert len(held) == 2 * len(bucket_of) and all(len(buckets) == 1 for buckets in held)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_damaged_file_is_found_by_the_worker_whose_share_it_is(
    rank: int, extensions: TwoExtensions, tmp_path: Path
) -> None:
    update = in_files(tmp_path, 1)
    name = max(hash_share(update.index.tensors, rank, 2), key=lambda name: model(1)[name].nbytes)
    content = bytes(model(1)[name].contiguous().reshape(-1).view(torch.uint8).numpy())
    assert update.folder is not None
    (file,) = (path for path in update.folder.glob("bucket-*") if content in path.read_bytes())
    file.write_bytes(file.read_bytes().replace(content, content[:-1] + bytes([content[-1] ^ 1])))
    with pytest.raises(BadWeights, match=f"tensor {name} .*is corrupted"):
        asyncio.run(extensions.calls.stage(update, 60.0))


def test_without_a_meeting_the_old_weights_are_served_on() -> None:
    """The server has to stage them again, and goes on."""
    why = "weights.broadcast.timeout_s: waited 30 s for worker 1 of the engine"

    async def call(method: str, *arguments: str) -> list[dict[str, Any]]:
        return [{GROUP_BROKEN: why}, {GROUP_BROKEN: why}]

    workers = EngineWorkers("vLLM", call)
    workers.num_workers = 2
    for work in (partial(workers.commit, 1), workers.meet):
        with pytest.raises(NotStaged, match="for worker 1 of the engine"):
            asyncio.run(work())
