"""Sends weights between processes on one GPU, through two buffers of the trainer that the others open (CUDA IPC). The
trainer fills a buffer again when all have confirmed that they copied what was in it. Never run on a GPU; the tests
replace the memory."""

import json

import torch
from torch import Tensor

from areal_like.weights import gpu_memory
from areal_like.weights.transfer import TransferGroup, parts
from areal_like.weights.transfer_path import SHARED_BUFFER_BYTES, SHARED_BUFFERS

SLOT_BYTES, NUM_SLOTS = SHARED_BUFFER_BYTES, SHARED_BUFFERS
SENT = "sent"
"""Number of parts that were sent."""


class IpcTransfer:
    def __init__(self, group: TransferGroup) -> None:
        self._group = group
        self._slots: list[Tensor] = []
        self._number = 0
        """Of parts since the group was formed."""

    def connect(self) -> None:
        group, store = self._group, self._group.store
        if group.rank == 0:
            self._slots = [gpu_memory.shareable_memory(SLOT_BYTES, group.device) for _ in range(NUM_SLOTS)]
            for rank in range(1, group.rendezvous.world):
                store.set(_handles(rank), json.dumps([gpu_memory.export_memory(slot) for slot in self._slots]))
            return
        group.wait_until(lambda: bool(store.check([_handles(group.rank)])), "the trainer's buffers")
        handles = json.loads(store.get(_handles(group.rank)))
        self._slots = [gpu_memory.open_memory(handle, group.device) for handle in handles]

    def broadcast(self, content: Tensor, what: str) -> None:
        """The first rank's content is in main memory, that of the others on their GPU."""
        for part in parts(content, SLOT_BYTES):
            slot = self._slots[self._number % NUM_SLOTS][: len(part)]
            if self._group.rank == 0:
                self._send(part, slot, what)
            else:
                self._receive(part, slot, what)
            self._number += 1

    def finish(self) -> None:
        """Until all have copied what is in the buffers: then these may be freed."""
        if self._group.rank == 0:
            self._wait_until_taken(self._number, "the last confirmations")

    def abort(self) -> None:
        """Nothing is under way that could hang."""

    def _send(self, part: Tensor, slot: Tensor, what: str) -> None:
        self._wait_until_taken(self._number - NUM_SLOTS + 1, what)
        slot.copy_(part, non_blocking=True)
        _until_done(slot)
        self._group.store.add(SENT, 1)

    def _receive(self, part: Tensor, slot: Tensor, what: str) -> None:
        store, number = self._group.store, self._number
        self._group.wait_until(lambda: int(store.add(SENT, 0)) > number, what)
        part.copy_(slot)
        _until_done(slot)
        store.add(_taken(self._group.rank), 1)

    def _wait_until_taken(self, count: int, what: str) -> None:
        """Until each of the others has copied so many parts."""
        store, others = self._group.store, range(1, self._group.rendezvous.world)
        self._group.wait_until(lambda: all(int(store.add(_taken(rank), 0)) >= count for rank in others), what)


def _until_done(content: Tensor) -> None:
    """Another process does not see this one's stream."""
    if content.is_cuda:
        torch.cuda.current_stream(content.device).synchronize()


def _handles(rank: int) -> str:
    return f"buffers-for-{rank}"


def _taken(rank: int) -> str:
    return f"taken-by-{rank}"
