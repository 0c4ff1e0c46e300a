"""Sends weights from GPU to GPU, by NCCL, in parts of SLOT_BYTES. A trainer's copy that is in pinned memory goes
through two buffers of its GPU, so that one is filled while the other is sent; one on its GPU is sent from where it is.
Never run on a GPU; the tests replace torch's NCCL."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from areal_like.weights import device_copies
from areal_like.weights.errors import GroupBroken
from areal_like.weights.transfer import TransferGroup, parts
from areal_like.weights.transfer_path import NCCL_SLOT_BYTES, NCCL_SLOTS

c10d: Any = dist
"""Its annotations lack what is used here."""

SLOT_BYTES, NUM_SLOTS = NCCL_SLOT_BYTES, NCCL_SLOTS
OWN_TIMEOUT = timedelta(days=1)
"""NCCL's limit for one operation. It is far above every limit of a transfer: these end it first, by an abort."""
NO_WATCHDOG = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""Read by torch when a group is made. Otherwise its watchdog ends the whole process when a member is gone, and its
monitor when an aborted transfer takes long."""

_environment = threading.Lock()


class NcclTransfer:
    def __init__(self, group: TransferGroup) -> None:
        self._group = group
        self._nccl: Any = None
        self._slots: list[Tensor] = []
        self._under_way: deque[tuple[Any, str]] = deque()
        self._number = 0

    def connect(self) -> None:
        self._nccl = self._group.wait_for_thread(self._make, "the connections of the group")

    def broadcast(self, content: Tensor, what: str, root: int = 0) -> None:
        """The content of `root` is on its GPU or in main memory, that of the others on their GPU."""
        uses_slots = self._group.rank == root and not device_copies.is_on_gpu(content)
        for part in parts(content, SLOT_BYTES):
            if uses_slots:
                self._wait_until_under_way(NUM_SLOTS - 1)
            sent = self._fill_slot(part) if uses_slots else part
            options = c10d.BroadcastOptions()
            options.rootRank, options.rootTensor = root, 0
            self._under_way.append((self._nccl.broadcast([sent], options), what))

    def finish(self) -> None:
        self._wait_until_under_way(0)

    def abort(self) -> None:
        if self._nccl is not None:
            self._nccl.abort()

    def _fill_slot(self, part: Tensor) -> Tensor:
        if not self._slots:
            device = self._group.device
            self._slots = [torch.empty(SLOT_BYTES, dtype=torch.uint8, device=device) for _ in range(NUM_SLOTS)]
        slot = self._slots[self._number % NUM_SLOTS][: len(part)]
        self._number += 1
        return slot.copy_(part, non_blocking=True)

    def _wait_until_under_way(self, count: int) -> None:
        """Until at most `count` operations are not complete. A wait of torch's own cannot be ended."""
        while len(self._under_way) > count:
            work, what = self._under_way.popleft()
            try:
                self._group.wait_until(work.is_completed, what)
            except GroupBroken:
                self._under_way.clear()
                self.abort()
                raise
            work.wait()  # orders this stream after it, or raises its error

    def _make(self) -> Any:
        group, options = self._group, c10d.ProcessGroupNCCL.Options()
        options._timeout = OWN_TIMEOUT
        store = c10d.PrefixStore("group", group.store)
        with _variables(NO_WATCHDOG):
            nccl = c10d.ProcessGroupNCCL(store, group.rank, group.rendezvous.world, options)
        nccl.eager_connect_single_device(group.device)  # else the first broadcast connects, which cannot be ended
        return nccl


@contextlib.contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    with _environment:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
