"""Offloading to host memory: optimizer state between updates, activations between forward and backward pass. Without a
GPU nothing is moved.

Page-locked memory is kept over steps. That of optimizer state is `HostCopies`'. That of activations, and of parameters
and gradients that FSDP offloads, is from torch's allocator for the host (`at::CachingHostAllocatorImpl` in
ATen/core/CachingHostAllocator.h): it rounds sizes up to powers of two, and when a tensor is freed it puts the block, as
soon as the copies from and to it are done, into a list of its size, from which the next tensor of that size gets it.
Nothing is unlocked unless the process asks for it. `launcher/plan/page_locked.py` counts what rounding adds."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from areal_like.training.host_copies import HOST, HostCopies
from areal_like.training.row_shards import local_tensor, shard_group

STATE_AT_ONCE = 1 << 28
"""Bytes of parameters whose optimizer state is on the GPU at a time."""
MIN_ELEMENTS = 1 << 10
"""Smaller activations are not moved."""


def step_from_host(optimizer: torch.optim.Optimizer, memory: HostCopies, at_once: int = STATE_AT_ONCE) -> None:
    """An optimizer step that loads the state of a few parameters at a time, from `memory` and back."""
    groups, group_parameters = optimizer.param_groups, [group["params"] for group in optimizer.param_groups]
    try:
        for number, parameters in enumerate(group_parameters):
            for chunk in _in_parts(parameters, at_once):
                for group in groups:
                    group["params"] = []
                groups[number]["params"] = chunk
                for parameter in chunk:
                    _load(optimizer, parameter)
                optimizer.step()
                for parameter in chunk:
                    _store(optimizer, parameter, memory)
        memory.wait()
    finally:
        for group, parameters in zip(groups, group_parameters, strict=True):
            group["params"] = parameters


def to_host(optimizer: torch.optim.Optimizer, memory: HostCopies) -> None:
    """Moves all optimizer state to the host, such as after loading a checkpoint."""
    for parameter in list(optimizer.state):
        _store(optimizer, parameter, memory)
    memory.wait()


def _in_parts(parameters: list[nn.Parameter], at_once: int) -> Iterator[list[nn.Parameter]]:
    """The same chunks on every rank, however unevenly rows are sharded: an optimizer step may be a collective."""
    chunk: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        ranks = shard_group(parameter)
        shard_bytes = parameter.numel() * parameter.element_size() // (1 if ranks is None else ranks.size())
        if chunk and size + shard_bytes > at_once:
            yield chunk
            chunk, size = [], 0
        chunk.append(parameter)
        size += shard_bytes
    if chunk:
        yield chunk


def _load(optimizer: torch.optim.Optimizer, parameter: Tensor) -> None:
    """To the device of the parameter."""
    device = local_tensor(parameter).device
    state = _state(optimizer, parameter)
    for kind, value in state.items():
        state[kind] = value.to(device, non_blocking=True)
    optimizer.state[parameter].update(state)


def _store(optimizer: torch.optim.Optimizer, parameter: Tensor, memory: HostCopies) -> None:
    for kind, value in _state(optimizer, parameter).items():
        if is_on_device(value):
            optimizer.state[parameter][kind] = memory.copy((id(parameter), kind), value)


def _state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Without scalar tensors: these are step counts, and stay on the device that their optimizer requires."""
    state: dict[str, Any] = optimizer.state.get(parameter, {})
    return {kind: value for kind, value in state.items() if isinstance(value, Tensor) and value.dim()}


def is_on_device(tensor: Tensor) -> bool:
    return local_tensor(tensor).device != HOST


class HostCopy(NamedTuple):
    """An activation in host memory; `arrived` is recorded when its copy is complete."""

    values: Tensor
    device: torch.device
    arrived: torch.cuda.Event | None


class _Content(NamedTuple):
    """What tensors that are alive have in common if they are the same numbers."""

    storage: int
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    version: int
    is_conjugate: bool
    is_negative: bool

    @classmethod
    def of(cls, tensor: Tensor) -> "_Content":
        local = local_tensor(tensor)
        return cls(
            local.untyped_storage()._cdata,  # which fake tensors have, too
            int(local.storage_offset()),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor._version,
            tensor.is_conj(),
            tensor.is_neg(),
        )


class HostActivations(saved_tensors_hooks):
    """Context manager: copies the tensors saved for the backward pass to host memory, in parallel to the computation.

    An activation stays on the GPU until its copy is complete; at most `max_in_flight` copies run at a time, after which
    the computation waits for the oldest. One that several operations save meanwhile is copied once.
    """

    def __init__(self, pin_memory: bool, max_in_flight: int) -> None:
        super().__init__(self.pack, self.unpack)
        self._pin_memory, self._max_in_flight = pin_memory and torch.cuda.is_available(), max_in_flight
        self.in_flight: deque[tuple[Tensor, _Content, HostCopy]] = deque()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._limit_in_flight(0)

    def pack(self, tensor: Tensor) -> Tensor | HostCopy:
        if not self._should_move(tensor):
            return tensor.detach()  # without its autograd graph
        content = _Content.of(tensor)
        for _, other, copy in self.in_flight:
            if other == content:
                return copy
        self._limit_in_flight(self._max_in_flight - 1)
        values = torch.empty(tensor.shape, dtype=tensor.dtype, device=HOST, pin_memory=self._pin_memory)
        arrived = None
        if tensor.is_cuda:
            stream = self._stream(tensor.device)
            stream.wait_stream(torch.cuda.current_stream(tensor.device))
            with torch.cuda.stream(stream):
                values.copy_(tensor, non_blocking=True)
                arrived = stream.record_event()
        else:
            values.copy_(tensor)
        moved = HostCopy(values, tensor.device, arrived)
        self.in_flight.append((tensor, content, moved))  # whose memory is not used again meanwhile
        return moved

    def unpack(self, saved: Tensor | HostCopy) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if saved.arrived is not None:
            saved.arrived.synchronize()
        return saved.values.to(saved.device, non_blocking=self._pin_memory, copy=True)

    def _limit_in_flight(self, most: int) -> None:
        """At most `most` copies are in flight."""
        while len(self.in_flight) > most:
            _, _, moved = self.in_flight.popleft()
            if moved.arrived is not None:
                torch.cuda.current_stream(moved.device).wait_event(moved.arrived)

    def _should_move(self, tensor: Tensor) -> bool:
        """Parameters stay: FSDP manages them."""
        base = tensor._base if tensor._base is not None else tensor
        is_large = tensor.numel() >= MIN_ELEMENTS and tensor.layout == torch.strided
        return is_large and not isinstance(base, nn.Parameter) and self.is_on_device(tensor)

    def is_on_device(self, tensor: Tensor) -> bool:
        return is_on_device(tensor)

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        """A separate stream for copies."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]
