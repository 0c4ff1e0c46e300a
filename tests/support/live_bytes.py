"""Counts the bytes of all tensors that are alive, operator by operator."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from areal_like.training.row_shards import local_tensor

Storage = torch.UntypedStorage


class LiveBytes(TorchDispatchMode):
    """Of tensors that operators return, from the beginning of the context; FSDP frees and refills storages by resizing
    them, which is no operator."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._resize = Storage.resize_

    def __enter__(self) -> "LiveBytes":
        def resized(storage: Storage, size: int) -> Any:
            result = self._resize(storage, size)
            self._note(storage)
            return result

        setattr(Storage, "resize_", resized)  # noqa: B010
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        setattr(Storage, "resize_", self._resize)  # noqa: B010

    def count(self, tensors: Sequence[Tensor]) -> int:
        """Tensors that were made before; returns their bytes on this rank."""
        before = self.now
        for tensor in tensors:
            self._note(local_tensor(tensor).untyped_storage())
        return self.now - before

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        for each in tree_iter(result):
            if isinstance(each, Tensor) and each.device.type == "cpu":
                self._note(each.untyped_storage())
        return result

    def _note(self, storage: Storage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._sizes:
            weakref.finalize(storage, self._gone, key)
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)
