"""A GPU on a CPU: tensors that count as its own, the bytes that are copied from and to them, and what waits for it."""

from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from areal_like.weights import device_checksum, device_copies, gpu_memory

READS = (Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.item, Tensor.__bool__, Tensor.__int__)


class StandInGpu:
    """`put` and `shareable_memory` make its tensors. `with gpu.reads()` also counts what reads them without `copy_`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._memory: dict[int, Tensor] = {}
        self.pinned: list[bool] = []
        self.clear()
        monkeypatch.setattr(device_copies, "is_on_gpu", self.has)
        monkeypatch.setattr(device_copies, "host_memory", self._host_memory)
        monkeypatch.setattr(device_copies, "when_done", lambda _: SimpleNamespace(synchronize=self._waiting("event")))
        monkeypatch.setattr(device_copies, "wait_for_stream", lambda _: self._waiting("stream")())
        shareable = gpu_memory.shareable_memory
        """Of files, in a test of transfers through it."""
        monkeypatch.setattr(gpu_memory, "shareable_memory", lambda size, device: self._own(shareable(size, device)))
        read_back = device_copies.start_read_back
        monkeypatch.setattr(device_copies, "start_read_back", lambda values: self._read_back(read_back, values))
        values_of = device_checksum.checksum_values
        for module in (device_checksum, *_users_of_checksums()):
            monkeypatch.setattr(module, "checksum_values", lambda tensors: self._own(values_of(tensors)))
        plain = Tensor.copy_

        def copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
            self._count(target, source, non_blocking)
            with torch._C.DisableTorchFunction():  # the mode would call this one again
                return plain(target, source)

        monkeypatch.setattr(Tensor, "copy_", copy)

    def clear(self) -> None:
        self.to_host = self.on_gpu = self.from_host = self.num_read_backs = 0
        self.waits: Counter[str] = Counter()
        """How often something waits: for an event, for a stream, or for a copy that blocks."""

    def put(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._own(tensor.clone()) for name, tensor in tensors.items()}

    def has(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._memory

    def reads(self) -> "_Reads":
        return _Reads(self)

    def _own(self, tensor: Tensor) -> Tensor:
        if not tensor.untyped_storage().nbytes():
            tensor = torch.empty(1, dtype=tensor.dtype)[:0].reshape(tensor.shape)
        self._memory[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def _host_memory(self, size: int, is_pinned: bool) -> Tensor:
        self.pinned.append(is_pinned)
        memory = torch.empty(max(size, 1), dtype=torch.uint8)
        self._memory.pop(memory.untyped_storage().data_ptr(), None)
        return memory[:size]

    def _read_back(self, read_back: Any, values: Tensor) -> Tensor:
        self.num_read_backs += 1
        self._own(values)
        found: Tensor = read_back(values)
        return found

    def _count(self, target: Tensor, source: Tensor, non_blocking: bool) -> None:
        to, of = self.has(target), self.has(source)
        self.to_host += source.nbytes * (of and not to)
        self.on_gpu += source.nbytes * (of and to)
        self.from_host += source.nbytes * (to and not of)
        if of != to and not non_blocking:
            self.waits["copy"] += 1

    def _waiting(self, name: str) -> Any:
        return lambda: self.waits.update([name])


class _Reads(TorchFunctionMode):
    """Counts values of the GPU that become numbers of Python or copies by another way than `copy_`."""

    def __init__(self, gpu: StandInGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS and self._gpu.has(args[0]):
            self._gpu.waits[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def _users_of_checksums() -> list[Any]:
    from areal_like.weights import flat_buckets, receive

    return [flat_buckets, receive]
