"""Counts what makes a process wait for its GPU. On a CPU the same operations run, and none of them waits."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

NUMBERS = {aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten.allclose}
"""Their result is a number of Python."""
SHAPES = {aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.bincount}
"""The shape of their result depends on values."""
COPIES = (Tensor.tolist, Tensor.cpu, Tensor.numpy, torch.tensor, torch.as_tensor, torch.from_numpy)
"""Copies from the device, or to it from memory that is not pinned."""


def waits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    packet = func.overloadpacket
    if packet in NUMBERS or packet in SHAPES:
        return True
    if packet is aten.repeat_interleave:
        return kwargs.get("output_size") is None
    by_mask = packet in (aten.index, aten.index_put, aten.index_put_)
    return by_mask and any(each is not None and each.dtype == torch.bool for each in args[1])


class _Operations(TorchDispatchMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if waits(func, args, kwargs or {}):
            self._counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


class _Copies(TorchFunctionMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in COPIES:
            self._counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def counted(counts: Counter[str]) -> Iterator[None]:
    """Adds each wait to `counts`, by its name."""
    with _Operations(counts), _Copies(counts):
        yield
