"""Stand-ins on a CPU for transfers between GPUs: of NCCL, and of memory that two processes share."""

import os
import queue
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
import torch
from torch import Tensor

from areal_like.weights import gpu_memory, ipc_transfer, nccl_transfer


class Work:
    def __init__(self, transfer: Callable[[], bool]) -> None:
        self._transfer, self._is_done, self.waits = transfer, False, 0

    def is_completed(self) -> bool:
        self._is_done = self._is_done or self._transfer()
        return self._is_done

    def wait(self) -> None:
        assert self._is_done, "a wait for NCCL cannot be ended"
        self.waits += 1


class StandIn:
    """In place of ProcessGroupNCCL, for the members of groups in one process. Broadcasts complete when they are asked
    for, once their sender has sent."""

    made: ClassVar[list["StandIn"]] = []

    class Options:
        _timeout: Any = None

    def __init__(self, store: Any, rank: int, world: int, options: Options) -> None:
        self.rank, self.world, self.options, self.aborts = rank, world, options, 0
        self.group = store.compare_set("stand-in", "", uuid4().hex)
        self.environment = {name: os.environ.get(name) for name in nccl_transfer.NO_WATCHDOG}
        self.arriving: dict[int, queue.Queue[Tensor]] = {each: queue.Queue() for each in range(world)}
        self.addresses: list[int] = []
        self.sent_bytes = 0
        self.works: list[Work] = []
        self.device: torch.device | None = None
        self.made.append(self)

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.device = device

    def broadcast(self, tensors: list[Tensor], options: Any) -> Work:
        (content,), root = tensors, options.rootRank
        assert options.rootTensor == 0 and content.dtype == torch.uint8 and content.is_contiguous()
        self.addresses.append(content.data_ptr())
        self.sent_bytes += content.nbytes * (root == self.rank)
        work = partial(self._send, content) if root == self.rank else partial(self._receive, content, root)
        self.works.append(Work(work))
        return self.works[-1]

    def _send(self, content: Tensor) -> bool:
        members = [member for member in self.made if member.group == self.group]
        if len(members) < self.world:
            return False
        for other in members:
            if other is not self:
                other.arriving[self.rank].put(content.clone())
        return True

    def _receive(self, content: Tensor, root: int) -> bool:
        try:
            content.copy_(self.arriving[root].get_nowait())
        except queue.Empty:
            return False
        return True

    def abort(self) -> None:
        self.aborts += 1


def replace_nccl(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    monkeypatch.setattr(StandIn, "made", [])
    monkeypatch.setattr(nccl_transfer.c10d, "ProcessGroupNCCL", StandIn, raising=False)
    monkeypatch.setattr(nccl_transfer, "SLOT_BYTES", 1000)
    return StandIn


def replace_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Two processes on one GPU are two mappings of one file. Handles that were opened."""
    opened: list[Any] = []
    paths: dict[int, str] = {}

    def allocate(size: int, device: torch.device) -> Tensor:
        path = str(tmp_path / f"slot-{len(paths)}")
        Path(path).write_bytes(bytes(size))
        content = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        paths[content.data_ptr()] = path
        return content

    def open_again(handle: list[Any], device: torch.device) -> Tensor:
        opened.append(handle)
        path, size = handle
        return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)

    monkeypatch.setattr(ipc_transfer, "SLOT_BYTES", 1000)
    monkeypatch.setattr(gpu_memory, "shareable_memory", allocate)
    monkeypatch.setattr(gpu_memory, "export_memory", lambda content: [paths[content.data_ptr()], len(content)])
    monkeypatch.setattr(gpu_memory, "open_memory", open_again)
    return opened
