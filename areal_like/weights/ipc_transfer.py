"""Sends weights between processes on one GPU, which open the trainer's memory (CUDA IPC) and copy what is in it: the
trainer's copy of the weights itself if it is on the GPU, else two buffers that are filled again when all have confirmed
that they copied what was in them. Never run on a GPU; the tests replace the memory."""

import json

from torch import Tensor

from areal_like.weights import device_copies, gpu_memory
from areal_like.weights.transfer import TransferGroup, parts
from areal_like.weights.transfer_path import SHARED_BUFFER_BYTES, SHARED_BUFFERS

SLOT_BYTES, NUM_SLOTS = SHARED_BUFFER_BYTES, SHARED_BUFFERS
SENT = "sent"
"""Number of parts that were sent."""
MAX_PARTS = 1 << 16
"""Parts of one version; their keys are used again."""


class IpcTransfer:
    def __init__(self, group: TransferGroup) -> None:
        self._group = group
        self._slots: list[Tensor] = []
        self._exported: dict[int, tuple[str, Tensor]] = {}
        """Of the trainer, by address: name and memory, which is kept as long as others may open it."""
        self._opened: dict[str, Tensor] = {}
        self._number = 0
        """Of parts since the group was formed."""

    def connect(self) -> None:
        """Memory is opened when the first part in it comes."""

    def broadcast(self, content: Tensor, what: str, root: int = 0) -> None:
        """The first rank's content is on the GPU or in main memory, that of the others on the GPU."""
        assert root == 0, "only the trainer's memory is shared"
        if self._group.rank:
            self._receive(content, what)
        elif device_copies.is_on_gpu(content):
            if len(content):
                self._send(content, content)
        else:
            for part in parts(content, SLOT_BYTES):
                self._wait_until_taken(self._number - NUM_SLOTS + 1, what)
                slot = self._slot()
                slot[: len(part)].copy_(part, non_blocking=True)
                device_copies.wait_for_stream(slot.device)  # others do not see this stream
                self._send(part, slot)

    def finish(self) -> None:
        """Until all have copied what is in the trainer's memory: then it may be written again, or freed."""
        if self._group.rank == 0:
            self._wait_until_taken(self._number, "the last confirmations")

    def abort(self) -> None:
        """Nothing is under way that could hang."""

    def _slot(self) -> Tensor:
        if not self._slots:
            self._slots = [gpu_memory.shareable_memory(SLOT_BYTES, self._group.device) for _ in range(NUM_SLOTS)]
        return self._slots[self._number % NUM_SLOTS]

    def _send(self, part: Tensor, memory: Tensor) -> None:
        store = self._group.store
        store.set(_key(self._number), json.dumps([self._export(memory), len(part)]))
        store.add(SENT, 1)
        self._number += 1

    def _export(self, memory: Tensor) -> str:
        """The name under which the others find its handle."""
        address = memory.data_ptr()
        if address not in self._exported:
            name = f"memory-{len(self._exported)}"
            for rank in range(1, self._group.rendezvous.world):
                self._group.store.set(f"{name}-for-{rank}", json.dumps(gpu_memory.export_memory(memory)))
            self._exported[address] = name, memory
        return self._exported[address][0]

    def _receive(self, content: Tensor, what: str) -> None:
        store, at = self._group.store, 0
        while at < len(content):
            self._group.wait_until(self._is_next_sent, what)
            name, size = json.loads(store.get(_key(self._number)))
            content[at : at + size].copy_(self._open(name)[:size])
            device_copies.wait_for_stream(content.device)
            store.add(_taken(self._group.rank), 1)
            self._number, at = self._number + 1, at + size

    def _is_next_sent(self) -> bool:
        return int(self._group.store.add(SENT, 0)) > self._number

    def _open(self, name: str) -> Tensor:
        if name not in self._opened:
            handle = json.loads(self._group.store.get(f"{name}-for-{self._group.rank}"))
            self._opened[name] = gpu_memory.open_memory(handle, self._group.device)
        return self._opened[name]

    def _wait_until_taken(self, count: int, what: str) -> None:
        """Until each of the others has copied so many parts."""
        store, others = self._group.store, range(1, self._group.rendezvous.world)
        self._group.wait_until(lambda: all(int(store.add(_taken(rank), 0)) >= count for rank in others), what)


def _key(number: int) -> str:
    return f"part-{number % MAX_PARTS}"


def _taken(rank: int) -> str:
    return f"taken-by-{rank}"
