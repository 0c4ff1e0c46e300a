"""vLLM's workers report their GPUs, and compare what they serve without a copy to the host; vLLM is not loaded."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from areal_like.serving.engines.base import EngineInfo
from areal_like.serving.engines.external.engine_workers import EngineWorkers
from areal_like.serving.engines.external.plugin import arriving_tensors
from areal_like.serving.engines.external.plugin.arriving_tensors import received
from areal_like.serving.engines.external.plugin.staging_room import StagingRoom
from areal_like.serving.engines.vllm.engine import VLLMEngine
from areal_like.serving.engines.vllm.plugin import worker
from areal_like.serving.engines.vllm.plugin.worker import WorkerExtension, served_hash
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.device_checksum import checksums
from areal_like.weights.errors import GroupBroken
from areal_like.weights.fingerprint import tensor_hash
from areal_like.weights.hash_shares import hash_share
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.rendezvous import Rendezvous
from tests.support.planning import loaded
from tests.support.weights_group import flat

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=f"GPU-{number}"))


def reported(rank: int, device: torch.device) -> dict[str, Any]:
    extension: Any = WorkerExtension()
    extension.rank, extension.device = rank, device
    result: dict[str, Any] = extension.areal_place()
    return result


def test_gpus_are_those_of_the_workers_in_the_order_of_ranks(gpu: None) -> None:
    def devices(*workers: dict[str, Any]) -> tuple[str, ...]:
        async def call(method: str, *arguments: str) -> list[dict[str, Any]]:
            assert method == "areal_place"
            return list(workers)

        return asyncio.run(EngineWorkers("vLLM", call).read_places())

    first, second = reported(0, GPU), reported(1, torch.device("cuda", 1))
    assert devices(second, first) == ("GPU-0", "GPU-1")
    assert devices(first, reported(1, torch.device("cpu"))) == ()
    assert devices(reported(0, torch.device("cpu"))) == ()


@pytest.mark.parametrize("theirs", ["", "my.Extension"])
def test_an_extension_of_the_user_is_not_asked_where_it_runs(theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = loaded("grpo", f"vllm.worker_extension_cls={theirs}", "vllm.dtype=float32").config
    engine, asked = VLLMEngine("127.0.0.1:1", "secret", config, Path("model")), list[str]()

    async def call(method: str, *arguments: str) -> list[dict[str, Any]]:
        asked.append(method)
        return [{"rank": 0, "machine": "here", "devices": ["GPU-0"]}]

    async def info() -> EngineInfo:
        return EngineInfo("vllm", "0.32.0", "m", 100, 60, (1,))

    async def nothing(*given: Any) -> list[Any]:
        return []

    engine._workers = EngineWorkers("vLLM", call)
    monkeypatch.setattr(engine, "_call_workers", call)
    monkeypatch.setattr(engine, "read_info", info)
    monkeypatch.setattr(engine, "generate", nothing)
    found = asyncio.run(engine.ready())
    assert asked == (["areal_discard"] if theirs else ["areal_discard", "areal_place"])
    assert found.devices == (() if theirs else ("GPU-0",))


def test_memory_that_ran_out_while_weights_came_breaks_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller sends them again, through main memory."""

    class Sent:
        def clone(self) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    at, index = Rendezvous("127.0.0.1", 1, "g.s", "nccl", 1, 2, 1.0), flat().index
    name = min(hash_share(index.tensors, 0, 2))

    def sent(*given: Any) -> Any:
        yield name, Sent()

    monkeypatch.setattr(arriving_tensors, "receive_tensors", sent)
    with pytest.raises(GroupBroken, match=f"no memory on the GPU for {name}"):
        list(received(at, index, 0, KeptGroup(), StagingRoom(torch.device("cpu")), 2))


def test_a_served_tensor_on_a_gpu_is_compared_by_its_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.arange(100, dtype=torch.float32)
    (checksum,) = checksums([("one", tensor)]).values()
    info = TensorInfo("one", "float32", (100,), "hash of the publication", checksum)
    assert served_hash(tensor, info) == tensor_hash(tensor), "on a CPU by its hash"
    monkeypatch.setattr(worker, "uses_checksums", lambda device: True)
    assert served_hash(tensor, info) == "hash of the publication"
    assert served_hash(tensor + 1, info) != "hash of the publication"
    assert served_hash(tensor.view(torch.int32), info) != "hash of the publication"
    assert served_hash(tensor, info._replace(checksum="")) == tensor_hash(tensor)
