"""Counts what makes a process wait for its GPU. On a CPU the same operations run, and none of them waits.

Parameters, and what is copied to the device, stand for tensors of a GPU, as does what operations make of these; all
other tensors are in host memory, where nothing waits.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from areal_like.training.row_shards import local_tensor

aten = torch.ops.aten

NUMBERS = {aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten.allclose}
"""Their result is a number of Python."""
SHAPES = {aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.bincount}
"""The shape of their result depends on values."""
READS = (Tensor.tolist, Tensor.cpu, Tensor.numpy)
"""Copies from the device that are no operation on a CPU."""
MADE = (torch.tensor, torch.as_tensor)
"""With a device, copies to it from memory that is not pinned."""


def waits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    packet = func.overloadpacket
    if packet in NUMBERS or packet in SHAPES:
        return True
    if packet is aten.repeat_interleave:
        return kwargs.get("output_size") is None
    by_mask = packet in (aten.index, aten.index_put, aten.index_put_)
    return by_mask and any(each is not None and each.dtype == torch.bool for each in args[1])


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What an operation writes into."""
    known = func._schema.arguments
    given = {argument.name: value for argument, value in zip(known, args, strict=False)} | kwargs
    return [given.get(each.name) for each in known if each.alias_info is not None and each.alias_info.is_write]


class _OnDevice:
    """Tensors by their memory, which is held so that no other tensor gets it."""

    def __init__(self, module: nn.Module) -> None:
        self._memory: dict[int, torch.UntypedStorage] = {}
        self.add([*module.parameters(), *module.buffers()])

    def add(self, value: Any) -> None:
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor):
                memory = local_tensor(tensor).untyped_storage()
                self._memory[memory._cdata] = memory

    def has(self, *values: Any) -> bool:
        tensors = (each for each in tree_leaves(values) if isinstance(each, Tensor))
        return any(local_tensor(tensor).untyped_storage()._cdata in self._memory for tensor in tensors)


class _Operations(TorchDispatchMode):
    def __init__(self, counts: Counter[str], there: _OnDevice) -> None:
        super().__init__()
        self._counts, self._there = counts, there

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._there.has(args, kwargs):
            self._there.add((result, _written(func, args, kwargs)))
            self._counts[str(func)] += waits(func, args, kwargs)
        return result


class _Copies(TorchFunctionMode):
    def __init__(self, counts: Counter[str], there: _OnDevice) -> None:
        super().__init__()
        self._counts, self._there = counts, there

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in READS:
            self._counts[func.__name__] += self._there.has(args[0])
        has_device = any(isinstance(each, torch.device) for each in (*args, *kwargs.values()))
        if has_device and (func in MADE or (func is Tensor.to and not self._there.has(args[0]))):
            self._counts[func.__name__] += not kwargs.get("non_blocking")
            self._there.add(result)
        return result


@contextlib.contextmanager
def counted(counts: Counter[str], module: nn.Module) -> Iterator[None]:
    """Adds each wait to `counts`, by its name. `module` is on the device."""
    there, found = _OnDevice(module), Counter[str]()
    with _Operations(found, there), _Copies(found, there):
        yield
    counts.update(+found)
