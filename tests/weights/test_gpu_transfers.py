"""Transfers between GPUs, on a CPU: a stand-in takes the place of NCCL, and a file that of memory which two processes
share."""

import contextlib
import json
import os
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from areal_like.weights import flat_buckets, ipc_transfer, nccl_transfer, receive
from areal_like.weights.buckets import bucket_hash, file_header, file_order
from areal_like.weights.collective import BroadcastHost
from areal_like.weights.device_checksum import checksums
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.flat_buckets import FlatWeights
from areal_like.weights.gpu_memory import export_memory, open_memory, shareable_memory
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.own_stream import own_stream
from areal_like.weights.receive import receive_tensors, verify_by_checksum
from areal_like.weights.rendezvous import Rendezvous
from tests.support.gpu_transfers import StandIn, replace_nccl, replace_shared_memory
from tests.support.stand_in_gpu import StandInGpu
from tests.support.weights_group import BackgroundCall, flat, join_group, model, rendezvous

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def host() -> Iterator[BroadcastHost]:
    found = BroadcastHost("127.0.0.1", 0)
    yield found
    found.close()


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    return replace_nccl(monkeypatch)


@pytest.fixture
def shared_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    return replace_shared_memory(monkeypatch, tmp_path)


def received(at: Rendezvous, rank: int, version: int, kept: KeptGroup) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in receive_tensors(at, rank, flat(version).index, kept)}


def send(kept: KeptGroup, at: Rendezvous, version: int) -> None:
    with kept.opened(at) as group:
        group.join()
        for content in flat(version).contents:
            group.send(content)
        group.finish()


def transfer(host: BroadcastHost, backend: str, versions: tuple[int, ...] = (1, 2, 3)) -> None:
    """Sends the versions to two servers over one group."""
    trainer, servers = KeptGroup(host=host), [KeptGroup(), KeptGroup()]
    for version in versions:
        at = rendezvous(host, 3, f"g{version}", timeout_s=60.0)._replace(backend=backend, continues=trainer.name)
        calls = [BackgroundCall(partial(received, at, rank, version, kept)) for rank, kept in enumerate(servers, 1)]
        send(trainer, at, version)
        for call in calls:
            tensors = call.wait()
            assert not isinstance(tensors, Exception), tensors
            assert all(torch.equal(tensors[name], tensor) for name, tensor in model(version).items())
    for each in (trainer, *servers):
        each.leave()


def test_weights_arrive_by_nccl_in_the_receivers_memory(host: BroadcastHost, nccl: type[StandIn]) -> None:
    transfer(host, "nccl")
    trainer, *servers = sorted(nccl.made, key=lambda member: member.rank)
    assert [member.rank for member in servers] == [1, 2], "one group for all versions"
    assert len(set(trainer.addresses)) == nccl_transfer.NUM_SLOTS, "the trainer's copy goes through two buffers"
    counts = {len(member.works) for member in nccl.made}
    assert len(counts) == 1 and counts.pop() > 3 * 12
    assert all(work.waits == 1 for member in nccl.made for work in member.works)
    assert all(member.device == torch.device("cpu") for member in nccl.made), "connected before the first broadcast"


@pytest.mark.parametrize("backend", ["nccl", "ipc", "gloo"])
def test_weights_on_the_trainers_gpu_are_copied_once_and_sent_from_there(
    backend: str,
    host: BroadcastHost,
    nccl: type[StandIn],
    monkeypatch: pytest.MonkeyPatch,
    shared_file: list[Any],
) -> None:
    """To the host only where servers have no GPU. Nothing is hashed there either."""
    gpu, trainer, servers = StandInGpu(monkeypatch), KeptGroup(host=host), [KeptGroup()]
    monkeypatch.setattr(flat_buckets, "hash_of", None)
    weights: FlatWeights | None = None
    for version in (1, 2):
        gpu.clear()
        tensors = gpu.put(model(version))
        with gpu.reads():
            copy = flat_buckets.copy_weights(tensors.items(), weights, 4000, stays_on_gpu=True)
            assert not gpu.waits and gpu.num_read_backs == 1
            weights = copy.hashed(version, None, "run-1")
        num_bytes, marks = sum(tensor.nbytes for tensor in tensors.values()), 8 * len(tensors)
        assert (gpu.on_gpu, gpu.to_host, gpu.from_host) == (num_bytes, marks, 0)
        at = rendezvous(host, 2, f"g{version}", timeout_s=60.0)._replace(backend=backend, continues=trainer.name)
        index = weights.index
        call = BackgroundCall(lambda at=at, index=index: cloned(receive_tensors(at, 1, index, servers[0])))  # type: ignore[misc]
        with trainer.opened(at) as group:
            group.join()
            for content in weights.contents:
                group.send(content)
            group.finish()
        arrived = call.wait()
        assert not isinstance(arrived, Exception), arrived
        assert all(torch.equal(arrived[name], tensor) for name, tensor in model(version).items())
        assert gpu.to_host == 2 * marks + (num_bytes if backend == "gloo" else 0), "the receiver reads checksums too"
        assert gpu.on_gpu == num_bytes, "no buffers"
    addresses = {content.data_ptr() for content in weights.contents if len(content)} if weights else set()
    if backend == "nccl":
        sender = next(member for member in nccl.made if member.rank == 0)
        assert addresses <= set(sender.addresses) and sender.sent_bytes == 2 * num_bytes
    if backend == "ipc":
        assert len(shared_file) == len(addresses), "the copy itself is opened, once for all versions"
    for each in (trainer, *servers):
        each.leave()


def cloned(tensors: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors}


def test_a_copy_that_was_damaged_on_its_way_is_found_by_its_checksum(
    host: BroadcastHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a server without a GPU, as there is no hash."""
    gpu = StandInGpu(monkeypatch)
    weights = flat_buckets.copy_weights(gpu.put(model(1)).items(), None, 4000, stays_on_gpu=True).hashed(1, None, "r")
    weights.contents[0][9] ^= 1
    at = rendezvous(host, 2, timeout_s=60.0)
    call = BackgroundCall(lambda: cloned(receive_tensors(at, 1, weights.index)))
    with contextlib.suppress(GroupBroken), host.open(at) as group:
        group.join()
        for content in weights.contents:
            group.send(content)
    assert isinstance(call.wait(), BadWeights) and "is corrupted" in str(call.wait())


def test_torchs_watchdog_never_ends_a_process_for_a_transfer(
    host: BroadcastHost, nccl: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NCCL_ENABLE_MONITORING", "1")
    transfer(host, "nccl", (1,))
    for member in nccl.made:
        assert member.environment == nccl_transfer.NO_WATCHDOG
        assert member.options._timeout.total_seconds() > 60.0
        assert member.aborts == 1, "left without waiting for others"
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "1"
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ


def test_a_wait_for_nccl_ends_when_the_group_is_aborted(host: BroadcastHost, nccl: type[StandIn]) -> None:
    at = rendezvous(host, 2)._replace(backend="nccl")
    call = BackgroundCall(partial(received, at, 1, 1, KeptGroup()))
    with host.open(at) as group:
        group.join()
        group.abort("server/1 refused")
    fault = call.wait()
    assert isinstance(fault, GroupBroken) and "server/1 refused" in str(fault)
    assert next(member for member in nccl.made if member.rank).aborts


def test_a_gpu_without_memory_breaks_the_group_so_that_main_memory_is_next(
    host: BroadcastHost, nccl: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **options: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.32 GiB")

    at = rendezvous(host, 2)._replace(backend="nccl")
    monkeypatch.setattr(receive, "torch", SimpleNamespace(**{**vars(torch), "empty": full}))
    call = BackgroundCall(partial(received, at, 1, 1, KeptGroup()))
    with host.open(at) as group:
        group.join()
        fault = call.wait()
    assert isinstance(fault, GroupBroken) and "no memory on the GPU for a bucket of " in str(fault)


def test_weights_go_through_memory_that_both_processes_opened(host: BroadcastHost, shared_file: list[Any]) -> None:
    transfer(host, "ipc")
    assert len(shared_file) == 2 * ipc_transfer.NUM_SLOTS, "opened once for all versions"


def test_shared_memory_is_filled_again_only_when_all_have_copied_it(
    host: BroadcastHost, shared_file: list[Any]
) -> None:
    at = rendezvous(host, 3, timeout_s=60.0)._replace(backend="ipc")
    go_on, sent = threading.Event(), 0

    def slowly(kept: KeptGroup) -> dict[str, Tensor]:
        tensors = {}
        for name, tensor in receive_tensors(at, 1, flat(1).index, kept):
            assert go_on.wait(60)
            tensors[name] = tensor.clone()
        return tensors

    servers, kept = (KeptGroup(), KeptGroup()), KeptGroup(host=host)
    calls = [BackgroundCall(partial(slowly, servers[0])), BackgroundCall(partial(received, at, 2, 1, servers[1]))]
    with kept.opened(at) as group:
        trainer = BackgroundCall(partial(_send_all, group))
        while not sent:
            sent = int(group.store.add(ipc_transfer.SENT, 0)) if group.store is not None else 0
        go_on.set()
        trainer.wait()
    for call in calls:
        tensors = call.wait()
        assert all(torch.equal(tensors[name], tensor) for name, tensor in model(1).items())
    for each in (kept, *servers):
        each.leave()


def _send_all(group: Any) -> None:
    group.join()
    for content in flat(1).contents:
        group.send(content)
    group.finish()


PART = torch.arange(100, dtype=torch.uint8)


def receive_one(at: Rendezvous, rank: int, go_on: threading.Event) -> Tensor:
    with join_group(at, rank) as group:
        assert go_on.wait(60)
        into = torch.zeros_like(PART)
        group.receive(into)
        return into


def test_the_sender_keeps_its_memory_until_all_have_confirmed(host: BroadcastHost, shared_file: list[Any]) -> None:
    at = rendezvous(host, 3, timeout_s=60.0)._replace(backend="ipc")
    soon, late = threading.Event(), threading.Event()
    soon.set()
    calls = [BackgroundCall(partial(receive_one, at, rank, event)) for rank, event in ((1, soon), (2, late))]
    with host.open(at) as group:

        def confirmed() -> list[int]:
            return [int(group.store.add(f"taken-by-{rank}", 0)) for rank in (1, 2)]

        def finish() -> list[int]:
            group.finish()
            return confirmed()

        group.join()
        group.send(PART)
        finishing = BackgroundCall(finish)
        while confirmed() != [1, 0]:
            pass
        late.set()
        assert finishing.wait() == [1, 1]
    assert all(torch.equal(call.wait(), PART) for call in calls)


def test_a_receiver_that_never_confirms_ends_the_transfer_after_a_named_limit(
    host: BroadcastHost, shared_file: list[Any]
) -> None:
    at, kept, never = (
        rendezvous(host, 2, timeout_s=1.0)._replace(backend="ipc"),
        KeptGroup(host=host),
        threading.Event(),
    )
    call = BackgroundCall(partial(receive_one, at, 1, never))
    limit = r"the trainer could not send: weights\.broadcast\.timeout_s: waited 1 s for the last confirmations"
    with pytest.raises(GroupBroken, match=limit), kept.opened(at) as group:
        group.join()
        group.send(PART)
        buffers = [weakref.ref(slot) for slot in group._transfer._slots]  # type: ignore[union-attr]
        group.finish()
    assert kept.name == "", "the next transfer needs a new group"
    assert not any(buffer() for buffer in buffers), "freed; torch gives it to no tensor before the receiver closes it"
    never.set()
    call.wait()


def test_a_handle_of_shared_memory_survives_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    content, opened = torch.arange(16, dtype=torch.uint8), []
    parts = 0, b"\0handle\xff", 16, 4, b"counter\x01", 7, b"event\x02", True
    storage = SimpleNamespace(_share_cuda_=lambda: parts)
    handle = json.loads(json.dumps(export_memory(SimpleNamespace(untyped_storage=lambda: storage))))  # type: ignore[arg-type]

    def opening(*given: Any) -> Any:
        opened.append(given)
        return content.untyped_storage()

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", opening)
    again = open_memory(handle, torch.device("cuda", 5))
    assert opened == [(5, *parts[1:])] and torch.equal(again, content)


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ("", []),
        ("max_split_size_mb:512", []),
        (
            "expandable_segments:True,max_split_size_mb:512",
            ["max_split_size_mb:512,expandable_segments:False", "expandable_segments:True,max_split_size_mb:512"],
        ),
    ],
)
def test_shared_memory_is_outside_of_expandable_segments(
    settings: str, changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", made.append)
    assert shareable_memory(10, torch.device("cpu")).nbytes == 10
    assert made == changes


def test_a_stream_of_its_own_is_complete_at_the_end_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            done.append("made")

        def __enter__(self) -> None:
            done.append("used")

        def __exit__(self, *fault: object) -> None:
            done.append("left")

        def synchronize(self) -> None:
            done.append("complete")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    with pytest.raises(GroupBroken), own_stream(torch.device("cuda", 0)):
        raise GroupBroken("broken")
    assert done == ["made", "used", "left", "complete"]
    with own_stream(torch.device("cpu")):
        pass
    assert len(done) == 4


def test_a_bucket_on_a_gpu_is_verified_by_checksums_computed_there() -> None:
    weights = flat()
    bucket, content = weights.index.buckets[0], weights.contents[0]
    ordered, infos, at = file_order(bucket.tensors), [], 0
    for info in ordered:
        (mark,) = checksums([("one", content[at : at + info.nbytes])]).values()
        infos.append(info._replace(checksum=mark, hash="never computed"))
        at += info.nbytes
    marked = bucket._replace(tensors=infos, hash=bucket_hash(file_header(infos), infos))
    for each, kind in ((marked, "checksum"), (bucket, "hash")):  # published from a GPU, and from a CPU
        verify_by_checksum(each, content, 3)
        content[7] ^= 1
        with pytest.raises(BadWeights, match=rf"tensor {ordered[0].name} is corrupted: .* not have the {kind} "):
            verify_by_checksum(each, content, 3)
        content[7] ^= 1
    with pytest.raises(BadWeights, match="its index is not the one that was published"):
        verify_by_checksum(marked._replace(hash=bucket.hash), content, 3)
