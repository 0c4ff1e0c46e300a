"""Of weights that are sent to the GPUs of one server each worker keeps a share, and passes it to the others when they
are applied: two workers in threads, with stand-ins for NCCL and for the process group of the engine."""

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from areal_like.serving.engines.external.plugin import exchange
from areal_like.serving.engines.sglang.plugin.calls import staged_group
from areal_like.serving.engines.vllm.plugin import packed_layers, worker
from areal_like.serving.engines.vllm.plugin.worker import WorkerExtension
from areal_like.weights.errors import BadWeights
from tests.serving.engines.sglang.test_worker import Schedulers
from tests.support.gpu_transfers import replace_nccl
from tests.support.weights_group import BackgroundCall, flat, model

pytestmark = pytest.mark.timeout(300)
TOTAL = sum(tensor.nbytes for tensor in model().values())
LARGEST = max(tensor.nbytes for tensor in model().values())


class ProcessGroup:
    """Broadcasts between threads: the n-th one of each rank is the same. `num_bytes`: those that were passed on."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = defaultdict(int)
        self._arrived = threading.Condition()
        self._sent: dict[int, Tensor] = {}
        self.ranks: dict[threading.Thread, int] = {}
        self.num_bytes = 0

    def broadcast(self, content: Tensor, owner: int, async_op: bool) -> Any:
        assert async_op and content.dtype == torch.uint8 and content.is_contiguous()
        rank = self.ranks[threading.current_thread()]
        number = self._numbers[rank]
        self._numbers[rank] += 1
        if rank == owner:
            with self._arrived:
                self._sent[number] = content.clone()
                self.num_bytes += content.nbytes
                self._arrived.notify_all()
        return SimpleNamespace(wait=lambda: self._receive(number, content))

    def _receive(self, number: int, content: Tensor) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: number in self._sent, 60)
        content.copy_(self._sent[number])


class TwoSchedulers(Schedulers):
    """SGLang's."""

    def loaded(self, rank: int, version: int) -> dict[str, Tensor]:
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


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> ProcessGroup:
    found = ProcessGroup()
    monkeypatch.setattr(exchange, "dist", found)
    return found


def in_both(work: Callable[[int], Any], group: ProcessGroup) -> list[Any]:
    """The results of two threads."""

    def run(rank: int) -> Any:
        group.ranks[threading.current_thread()] = rank
        return work(rank)

    calls = [BackgroundCall(partial(run, rank)) for rank in range(2)]
    return [call.wait() for call in calls]


def test_each_worker_keeps_a_share_and_gets_the_others_when_they_are_applied(server: Any, group: ProcessGroup) -> None:
    update_once(server, group, 1)
    update_once(server, group, 2)
    assert group.num_bytes == 2 * TOTAL, "every byte is passed on once"


def update_once(server: Any, group: ProcessGroup, version: int) -> None:
    server.update(flat(version), "nccl")
    shares = [server.kept(rank) for rank in range(2)]
    sizes = [sum(tensor.nbytes for tensor in share.values()) for share in shares]
    assert sum(sizes) == TOTAL and not shares[0].keys() & shares[1].keys()
    assert abs(sizes[0] - sizes[1]) <= LARGEST
    for loaded in in_both(lambda rank: server.loaded(rank, version), group):
        assert loaded.keys() == model().keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in model(version).items())


def test_without_nccl_each_worker_keeps_all(server: Any, group: ProcessGroup) -> None:
    server.update(flat(1), "gloo")
    assert all(server.kept(rank).keys() == model().keys() for rank in range(2))
    in_both(lambda rank: server.loaded(rank, 1), group)
    assert not group.num_bytes


def test_a_worker_applies_nothing_unless_the_others_verified_their_shares(
    group: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_layers, "_is_dense_on_cpu", lambda model: False)
    replace_nccl(monkeypatch)
    server = TwoExtensions()
    asyncio.run(server.calls.read_places())
    server.update(flat(1), "nccl")
    server.calls._verified = [0]
    with pytest.raises(BadWeights, match="version 1 of the weights: worker 1 did not verify its share"):
        asyncio.run(server.calls.commit(1))
    assert not group.num_bytes
    for each in server.extensions:
        each._areal.group.leave()
    server.close()
