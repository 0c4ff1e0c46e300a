"""Counts bytes that are copied to main memory from a GPU, in whose place the device `meta` is: without content."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

META = torch.device("meta")


class HostCopies(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = self.num_copied = 0
        """Bytes that came to main memory, and tensors that were copied within the GPU."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        first = args[0] if args else None
        target = options.get("device")
        if isinstance(first, Tensor) and first.device == META and target == torch.device("cpu"):
            self.num_bytes += first.nbytes
            return torch.empty(first.shape, dtype=first.dtype)
        if function is torch.ops.aten.clone.default and first is not None and first.device == META:
            self.num_copied += 1
        return function(*args, **options)
