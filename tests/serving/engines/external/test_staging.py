"""Weights that are sent to a worker's GPU stay there until they are applied, if the plan or the engine leaves them
room; on a CPU, with tensors without content and invented amounts of memory."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from areal_like.process.identity import STAGED_BYTES
from areal_like.serving.engines.base import WeightUpdate
from areal_like.serving.engines.external.engine_workers import EngineWorkers
from areal_like.serving.engines.external.plugin import arriving_tensors
from areal_like.serving.engines.external.plugin.arriving_tensors import received
from areal_like.serving.engines.external.plugin.staging_room import StagingRoom
from areal_like.serving.engines.sglang.plugin.worker import SchedulerWorker
from areal_like.weights import receive
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.rendezvous import Rendezvous
from tests.support.host_copies import META, HostCopies
from tests.support.weights_group import flat, model

GPU = torch.device("cuda", 0)
GIB = 2**30
INDEX = flat().index
TOTAL = sum(info.nbytes for info in INDEX.tensors)


class Memory:
    """Of a GPU with 80 GiB: `free` by the driver, `unused` by torch's allocator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.unused = 10 * GIB, 4 * GIB
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (self.free, 80 * GIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 60 * GIB)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 60 * GIB - self.unused)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return Memory(monkeypatch)


def test_new_weights_stay_on_a_gpu_that_has_room_for_them(gpu: Memory) -> None:
    room = StagingRoom(GPU)
    assert room.has(9 * GIB) and not room.has(10 * GIB), "what the engine does not use now is not free"
    assert room.lacks == "new weights take 10.0 GiB, and the engine leaves 9.8 GiB of its GPU"
    assert room.has(9 * GIB) and not room.lacks
    assert StagingRoom(torch.device("cpu")).has(1 << 60)


def test_memory_that_torch_keeps_of_the_weights_before_is_free_for_the_next(gpu: Memory) -> None:
    room = StagingRoom(GPU)
    assert room.has(9 * GIB)
    gpu.free = 1 * GIB
    assert not room.has(9 * GIB), "an engine of another process took it"
    gpu.unused = 13 * GIB
    assert room.has(9 * GIB) and not room.has(10 * GIB)
    gpu.unused = 0
    assert room.has(GIB // 2) and not room.has(GIB), "the engine uses all of its own"


@pytest.mark.parametrize(("free_gib", "unused_gib"), [(10, 4), (14, 0), (6, 8), (20, 0)])
def test_without_a_plan_sglang_keeps_the_memory_that_was_free_at_its_start(
    free_gib: int, unused_gib: int, gpu: Memory
) -> None:
    """Its activations are there: in a prefill, or kept by torch."""
    room = SchedulerWorker(0, GPU)._room
    gpu.free, gpu.unused = free_gib * GIB, unused_gib * GIB
    assert room.has(5 * GIB) == (free_gib == 20)


@pytest.mark.parametrize("shares_gpu", [False, True])
def test_what_the_plan_left_is_for_new_weights_as_long_as_it_is_free(
    shares_gpu: bool, gpu: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with SGLang, and on a GPU that the trainer uses too."""
    monkeypatch.setenv(STAGED_BYTES, str(6 * GIB))
    room = SchedulerWorker(0, GPU)._room
    assert room.has(6 * GIB, shares_gpu)
    assert not room.has(7 * GIB, shares_gpu), "the rest is for activations, and for the trainer"
    gpu.free = 5 * GIB
    assert not room.has(6 * GIB, shares_gpu)
    assert room.lacks == "new weights take 6.0 GiB, as planned, and its GPU has 5.0 GiB free"


def test_without_a_plan_nothing_stays_on_a_gpu_that_the_trainer_uses_too(gpu: Memory) -> None:
    room = StagingRoom(GPU)
    assert not room.has(1, shares_gpu=True) and "the trainer shares" in room.lacks


@pytest.fixture
def arriving(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCopies]:
    """A group that sends the index's tensors into a worker's GPU. Counts what is copied to main memory."""

    @contextlib.contextmanager
    def joined(at: Rendezvous, *given: Any) -> Iterator[Any]:
        yield SimpleNamespace(rendezvous=at, device=META, receive=lambda content: None)

    monkeypatch.setattr(receive, "_joined", joined)
    monkeypatch.setattr(receive, "verify_on_device", lambda *given: None)
    monkeypatch.setattr(arriving_tensors, "own_stream", contextlib.nullcontext)
    with HostCopies() as copies:
        yield copies


@pytest.mark.parametrize(
    ("backend", "planned", "copied"),
    [("nccl", True, 0), ("ipc", True, 0), ("nccl", False, 0), ("ipc", False, TOTAL)],
)
def test_no_byte_goes_to_the_host_where_there_is_room(
    backend: str, planned: bool, copied: int, gpu: Memory, arriving: HostCopies
) -> None:
    at, room = Rendezvous("127.0.0.1", 1, "g.s", backend, 1, 2, 1.0), StagingRoom(GPU, planned=GIB if planned else 0)
    tensors = dict(received(at, INDEX, 0, KeptGroup(GPU), room))
    assert set(tensors) == set(model())
    assert sum(tensor.nbytes for tensor in tensors.values()) == TOTAL
    assert {tensor.device.type for tensor in tensors.values()} == {"cpu" if copied else "meta"}
    assert arriving.num_bytes == copied


def test_what_a_worker_holds_at_once_is_what_it_asks_room_for(gpu: Memory, arriving: HostCopies) -> None:
    at, asked = Rendezvous("127.0.0.1", 1, "g.s", "nccl", 1, 2, 1.0), list[int]()

    def has(num_bytes: int, shares_gpu: bool) -> bool:
        asked.append(num_bytes)
        return True

    room = SimpleNamespace(has=has)
    tensors = [tensor for _, tensor in received(at, INDEX, 0, KeptGroup(GPU), room)]  # type: ignore[arg-type]
    bucket = max(sum(info.nbytes for info in each.tensors) for each in INDEX.buckets)
    assert asked == [sum(tensor.nbytes for tensor in tensors) + bucket]


def test_the_servers_log_says_once_why_weights_go_through_main_memory(caplog: pytest.LogCaptureFixture) -> None:
    lacks = "new weights take 6.0 GiB, and the engine leaves 1.0 GiB of its GPU"

    async def call(method: str, *arguments: str) -> list[dict[str, Any]]:
        return [{"rank": 0, "lacks": ""}, {"rank": 1, "lacks": lacks}]

    workers = EngineWorkers("vLLM", call, "vllm.gpu_memory_utilization")
    with caplog.at_level(logging.WARNING):
        for version in (1, 2):
            asyncio.run(workers.stage(WeightUpdate(version, INDEX)))
    (record,) = caplog.records
    assert record.getMessage() == (
        "vllm.gpu_memory_utilization: new weights go through main memory, which takes longer "
        f"(worker 1: {lacks}); lower it, or set it to auto, to keep them on the GPU"
    )
