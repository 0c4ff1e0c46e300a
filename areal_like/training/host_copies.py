"""Copies of tensors in host memory. Those of a GPU's tensors are page-locked, and the memory is kept and used again:
locking it takes longer than the copy."""

import logging
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from areal_like.training.row_shards import local_tensor

HOST = torch.device("cpu")

log = logging.getLogger(__name__)


def page_locked(tensor: Tensor) -> Tensor:
    """Empty memory for a copy."""
    try:
        return torch.empty_like(tensor, device=HOST, pin_memory=True, memory_format=torch.contiguous_format)
    except RuntimeError as fault:
        log.warning("%d bytes of host memory could not be page-locked: copies take longer (%s)", tensor.nbytes, fault)
        return torch.empty_like(tensor, device=HOST, memory_format=torch.contiguous_format)


def stream_end() -> None:
    """Waits until the GPU has done what it was given."""
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    done.synchronize()


class HostCopies:
    """Each key has one copy, which the next of the same key replaces. Valid after `wait`."""

    def __init__(
        self,
        keeps: bool,
        allocate: Callable[[Tensor], Tensor] = page_locked,
        synchronize: Callable[[], None] = stream_end,
    ) -> None:
        """`keeps`: for tensors of a GPU. Without, every copy is new memory, which is freed with the copy."""
        self._keeps, self._allocate, self._synchronize = keeps, allocate, synchronize
        self._kept: dict[Hashable, Tensor] = {}
        self._are_under_way = False

    def copy(self, key: Hashable, tensor: Tensor) -> Tensor:
        """Of a sharded tensor: with its rank's part on the host. Without waiting."""
        tensor = tensor.detach()
        if not self._keeps:
            return tensor.to(HOST, copy=True, memory_format=torch.contiguous_format)
        copy = self._kept.get(key)
        if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
            copy = self._kept[key] = self._allocate(tensor)
        local_tensor(copy).copy_(local_tensor(tensor), non_blocking=True)
        self._are_under_way = True
        return copy

    def wait(self) -> None:
        """Once for all copies since the last wait."""
        if self._are_under_way:
            self._synchronize()
        self._are_under_way = False
