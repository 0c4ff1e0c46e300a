"""Weights that are sent to a worker's GPU stay there until they are applied, if the plan or the engine leaves them
room; on a CPU, with tensors without content and invented amounts of memory."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from areal_like.process.identity import STAGED_BYTES
from areal_like.serving.engines.base import WeightUpdate
from areal_like.serving.engines.engine_site import SPARE_BYTES
from areal_like.serving.engines.external.engine_workers import EngineWorkers
from areal_like.serving.engines.external.plugin import arriving_tensors
from areal_like.serving.engines.external.plugin.arriving_tensors import received, use_on_this_stream
from areal_like.serving.engines.external.plugin.staging_room import StagingRoom
from areal_like.serving.engines.sglang.plugin.worker import SchedulerWorker
from areal_like.serving.engines.vllm.plugin.worker import budget_left
from areal_like.weights import device_copies, receive
from areal_like.weights.errors import GroupBroken
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
    replace_group(monkeypatch, lambda content: None)
    monkeypatch.setattr(arriving_tensors, "own_stream", contextlib.nullcontext)
    with HostCopies() as copies:
        yield copies


def replace_group(monkeypatch: pytest.MonkeyPatch, receive_bucket: Callable[[Tensor], None]) -> None:
    @contextlib.contextmanager
    def joined(at: Rendezvous, *given: Any) -> Iterator[Any]:
        yield SimpleNamespace(rendezvous=at, device=META, receive=receive_bucket)

    monkeypatch.setattr(receive, "_joined", joined)
    monkeypatch.setattr(receive, "verify_by_checksum", lambda *given: None)


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


@pytest.mark.parametrize("shares", [1, 2])
def test_what_a_worker_holds_at_once_is_what_it_asks_room_for(shares: int, gpu: Memory, arriving: HostCopies) -> None:
    """All of each bucket is kept where it arrives, and a share of it is copied."""
    at, asked = Rendezvous("127.0.0.1", 1, "g.s", "nccl", 1, 2, 1.0), list[int]()

    def has(num_bytes: int, shares_gpu: bool) -> bool:
        asked.append(num_bytes)
        return True

    room: Any = SimpleNamespace(has=has)
    tensors = [tensor for _, tensor in received(at, INDEX, 0, KeptGroup(GPU), room, shares)]
    bucket = max(sum(info.nbytes for info in each.tensors) for each in INDEX.buckets)
    kept = sum(tensor.nbytes for tensor in tensors)
    assert asked == [kept + (bucket if shares > 1 else 0)]
    assert arriving.num_copied == (0 if shares == 1 else len(tensors))


class Streams:
    """In place of those of torch: what each does, in order. New tensors are those of `META`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, str]] = []
        self._current, self._made = ["the engine's"], 0
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self._stream())
        monkeypatch.setattr(torch.cuda, "stream", self._use)

    def does(self, what: str) -> None:
        self.done.append((self._current[-1], what))

    def _stream(self) -> Any:
        self._made += 1
        name = f"own {self._made}"
        return SimpleNamespace(name=name, synchronize=lambda: self.done.append((name, "waited for")))

    @contextlib.contextmanager
    def _use(self, stream: Any) -> Iterator[None]:
        self._current.append(stream.name)
        yield
        self._current.pop()


class Operations(TorchDispatchMode):
    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams = streams

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("clone", "_to_copy"):
            self._streams.does(name)
            return torch.empty(args[0].shape, dtype=args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("shares", "planned", "copies"), [(1, True, ""), (2, True, "clone"), (1, False, "_to_copy")], ids=str
)
def test_weights_arrive_and_are_copied_on_a_stream_that_the_engine_does_not_wait_for(
    shares: int, planned: bool, copies: str, gpu: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is complete before the weights count as staged."""
    streams, backend = Streams(monkeypatch), "nccl" if planned else "ipc"
    replace_group(monkeypatch, lambda content: streams.does("receive"))
    monkeypatch.setattr(receive, "verify_by_checksum", lambda *given: streams.does("verify"))
    room, at = StagingRoom(GPU, planned=GIB if planned else 0), Rendezvous("h", 1, "g.s", backend, 1, 2, 1.0)
    with Operations(streams):
        count = sum(1 for _ in received(at, INDEX, 0, KeptGroup(GPU), room, shares))
    assert {stream for stream, _ in streams.done} == {"own 1"}
    assert streams.done[-1] == ("own 1", "waited for")
    steps = [what for _, what in streams.done[:-1]]
    assert steps.count("receive") == steps.count("verify") == len(INDEX.buckets)
    assert steps.count(copies) == (count if copies else 0) and steps[:2] == ["receive", "verify"]


def test_the_wait_for_a_stream_comes_also_when_the_transfer_fails(gpu: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)

    def broken(content: Tensor) -> None:
        raise GroupBroken("server/1 refused")

    replace_group(monkeypatch, broken)
    at = Rendezvous("h", 1, "g.s", "nccl", 1, 2, 1.0)
    with pytest.raises(GroupBroken):
        list(received(at, INDEX, 0, KeptGroup(GPU), StagingRoom(GPU)))
    assert streams.done == [("own 1", "waited for")]


def test_the_engines_stream_reads_staged_weights_before_their_memory_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[str] = []
    monkeypatch.setattr(device_copies, "is_on_gpu", lambda tensor: tensor.device == GPU)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    tensors: Any = [SimpleNamespace(device=each, record_stream=recorded.append) for each in (GPU, "cpu", GPU)]
    use_on_this_stream(iter(tensors))
    assert recorded == ["stream of cuda:0"] * 2


def test_what_vllm_frees_of_its_budget_between_steps_is_no_room(gpu: Memory) -> None:
    """Its activations: it takes them again in the next prefill."""
    vllm = SimpleNamespace(requested_memory=67 * GIB)
    assert budget_left(vllm, GPU) == 7 * GIB, "60 GiB are reserved"
    room = StagingRoom(GPU, SPARE_BYTES + budget_left(vllm, GPU))
    assert room.has(2 * GIB) and not room.has(3 * GIB)
    assert budget_left(SimpleNamespace(requested_memory=50 * GIB), GPU) == budget_left(None, torch.device("cpu")) == 0


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
