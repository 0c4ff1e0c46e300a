"""Weights of which each worker of an engine keeps a share, passed from one to all while they are applied. Runs in the
engine's environment.

The workers have a group of their own for it, which lasts as long as their group with the trainer, and like it has a
limit for each wait and can be aborted. In the engine's process group a worker that hangs would stop the others until
torch's watchdog ends them. They meet in the key-value store of the engine.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from areal_like.weights.buckets import TensorInfo
from areal_like.weights.collective import BroadcastGroup
from areal_like.weights.errors import GroupBroken
from areal_like.weights.flat_buckets import as_tensor
from areal_like.weights.hash_shares import hash_shares
from areal_like.weights.index import Index
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.rendezvous import Rendezvous
from areal_like.weights.transfer_path import GLOO, NCCL

c10d: Any = dist
"""Its annotations lack what is used here."""

ALL, NOT_ALL = "all", "not all"

log = logging.getLogger(__name__)


class ShareExchange:
    """`sent`: the worker's group with the trainer. It is left when the exchange fails, so that the trainer begins a new
    one, and with it a new exchange."""

    def __init__(self, device: torch.device, sent: KeptGroup) -> None:
        self._device, self._sent = device, sent
        self._group: BroadcastGroup | None = None
        self._of, self._meetings = "", 0

    def connect(self, sent_at: Rendezvous, rank: int, workers: int) -> None:
        """Before weights come: all workers do so at the same time. Without a backend it is that of the device."""
        of = sent_at.continues or sent_at.group
        if self._group is not None and self._of == of:
            return
        self.leave()
        at = sent_at._replace(group=f"{sent_at.title}-workers-{sent_at.first_rank}.{of}", world=workers, continues="")
        at = at._replace(backend=at.backend or (NCCL if self._device.type == "cuda" else GLOO))
        with _closed_on_fault(self.leave):
            group = BroadcastGroup(at, rank, self._device, EngineStore(at.group), who=f"worker {rank}")
            self._group, self._of, self._meetings = group, of, 0
            self.meet()
            group.join()

    def meet(self) -> None:
        """Until all workers are here. Either all of them return from it, or all raise GroupBroken, with the worker that
        did not come in time: then nothing was applied."""
        group = self._group
        if group is None:
            raise GroupBroken("the workers of this engine are no longer connected")
        self._meetings += 1
        with _closed_on_fault(self._fail):
            _meet(group, self._meetings)

    def tensors(self, index: Index, kept: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """All tensors on the worker's device, one bucket at a time. Every worker must iterate over it at the same
        time, after they met."""
        assert self._group is not None, "they meet first"
        shares = hash_shares(index.tensors, self._group.rendezvous.world)
        owners = {name: rank for rank, share in enumerate(shares) for name in share}
        for bucket in index.buckets:
            yield from self._passed_on(bucket.tensors, owners, kept)

    def _passed_on(
        self, infos: Sequence[TensorInfo], owners: Mapping[str, int], kept: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor]]:
        """Those of one bucket, which holds their memory no longer than it iterates."""
        assert self._group is not None, "they meet first"
        contents = [(info, _content(info, kept, self._device)) for info in infos]
        with _closed_on_fault(self._fail):
            self._group.pass_on(
                (content, owners[info.name], f"{info.name} of worker {owners[info.name]}")
                for info, content in contents
                if len(content)
            )
        for info, content in contents:
            yield info.name, as_tensor(info, content)

    def leave(self, fault: BaseException | None = None) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.leave(fault)

    def _fail(self, fault: BaseException) -> None:
        log.warning("new weights are not passed on: %s", fault)
        self.leave(fault)
        self._sent.leave()


class EngineStore:
    """The store of the engine's process group, with keys of our own."""

    def __init__(self, name: str) -> None:
        self._store = c10d.PrefixStore(name, c10d.distributed_c10d._get_default_store())

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes | None:
        value: bytes | None = self._store.get(key) if self._store.check([key]) else None
        return value

    def add(self, key: str, number: int) -> int:
        return int(self._store.add(key, number))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        found: bytes = self._store.compare_set(key, expected, desired)
        return found


def _meet(group: BroadcastGroup, number: int) -> None:
    """The first who sees all, or whose wait is over, decides for all."""
    store, world = group.store, group.rendezvous.world
    store.set(_here(number, group.rank), "1")
    try:
        for rank in range(world):
            group.wait_until(partial(store.check, [_here(number, rank)]), f"worker {rank} of the engine")
        why, wanted = "", ALL
    except GroupBroken as broken:
        why, wanted = str(broken), f"{NOT_ALL}: {broken}"
    decided = store.compare_set(f"met-{number}", "", wanted).decode("utf-8", "replace")
    if decided != ALL:
        raise GroupBroken(why or decided.removeprefix(f"{NOT_ALL}: "))


def _here(number: int, rank: int) -> str:
    return f"here-{number}-{rank}"


@contextlib.contextmanager
def _closed_on_fault(close: Callable[[BaseException], None]) -> Iterator[None]:
    try:
        yield
    except GroupBroken as broken:
        close(broken)
        raise
    except (RuntimeError, OSError) as fault:
        close(fault)
        raise GroupBroken(f"the store of the engine's workers: {fault}"[:300]) from fault


def _content(info: TensorInfo, kept: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """As bytes. What is not kept gets memory of its own: an engine may collect the tensors of a layer."""
    tensor = kept.get(info.name)
    if tensor is None:
        return torch.empty(info.nbytes, dtype=torch.uint8, device=device)
    return tensor.to(device).reshape(-1).view(torch.uint8)
