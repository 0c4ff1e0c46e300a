"""What waits in host memory while a GPU does not need it: the optimizer's state between two updates, activations
between forward and backward pass. Without a GPU all of it is in host memory anyway, and nothing is moved."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from areal_like.training.row_shards import local_tensor, shard_group

HOST = torch.device("cpu")
STATE_AT_ONCE = 1 << 28
"""Bytes of parameters whose state is on the GPU at a time."""
MIN_ELEMENTS = 1 << 10
"""Elements of an activation below which moving it is not worth the while."""


def step_from_host(optimizer: torch.optim.Optimizer, at_once: int = STATE_AT_ONCE) -> None:
    """A step of the optimizer that brings in the state of a few parameters at a time."""
    groups, all_of_them = optimizer.param_groups, [group["params"] for group in optimizer.param_groups]
    try:
        for number, parameters in enumerate(all_of_them):
            for few in _in_parts(parameters, at_once):
                for group in groups:
                    group["params"] = []
                groups[number]["params"] = few
                for parameter in few:
                    _move(optimizer, parameter, local_tensor(parameter).device)
                optimizer.step()
                for parameter in few:
                    _move(optimizer, parameter, HOST)
    finally:
        for group, parameters in zip(groups, all_of_them, strict=True):
            group["params"] = parameters


def to_host(optimizer: torch.optim.Optimizer) -> None:
    """All of its state, where a checkpoint left it elsewhere."""
    for parameter in list(optimizer.state):
        _move(optimizer, parameter, HOST)


def _in_parts(parameters: list[nn.Parameter], at_once: int) -> Iterator[list[nn.Parameter]]:
    """The same on every rank, however unevenly rows are spread: an optimizer may have all ranks meet in a step."""
    part: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        ranks = shard_group(parameter)
        own = parameter.numel() * parameter.element_size() // (1 if ranks is None else ranks.size())
        if part and size + own > at_once:
            yield part
            part, size = [], 0
        part.append(parameter)
        size += own
    if part:
        yield part


def _move(optimizer: torch.optim.Optimizer, parameter: Tensor, device: torch.device) -> None:
    state: dict[str, Any] = optimizer.state.get(parameter, {})
    for kind, value in state.items():
        # A tensor without dimensions is a count of steps, and stays where its optimizer wants it.
        if isinstance(value, Tensor) and value.dim() and local_tensor(value).device != device:
            state[kind] = value.to(device)


class HostCopy(NamedTuple):
    """An activation in host memory, and when it is all there."""

    values: Tensor
    device: torch.device
    arrived: torch.cuda.Event | None


class HostActivations(saved_tensors_hooks):
    """While it is entered, what the backward pass will need is copied to host memory, beside the computation.

    An activation stays on the GPU until its copy is done; at most `max_in_flight` are so at a time, and the
    computation waits for the oldest before there is one more.
    """

    def __init__(self, pin_memory: bool, max_in_flight: int) -> None:
        super().__init__(self.pack, self.unpack)
        self._pins, self._most = pin_memory and torch.cuda.is_available(), max_in_flight
        self.in_flight: deque[tuple[Tensor, HostCopy]] = deque()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._wait_until(0)

    def pack(self, tensor: Tensor) -> Tensor | HostCopy:
        if not self._should_move(tensor):
            return tensor.detach()  # the tensor itself would keep alive what made it
        self._wait_until(self._most - 1)
        values = torch.empty(tensor.shape, dtype=tensor.dtype, device=HOST, pin_memory=self._pins)
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
        self.in_flight.append((tensor, moved))
        return moved

    def unpack(self, saved: Tensor | HostCopy) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if saved.arrived is not None:
            saved.arrived.synchronize()
        return saved.values.to(saved.device, non_blocking=self._pins, copy=True)

    def _wait_until(self, most: int) -> None:
        """Until at most so many are on their way."""
        while len(self.in_flight) > most:
            _, moved = self.in_flight.popleft()
            if moved.arrived is not None:
                torch.cuda.current_stream(moved.device).wait_event(moved.arrived)

    def _should_move(self, tensor: Tensor) -> bool:
        """Weights stay: FSDP takes care of them."""
        base = tensor._base if tensor._base is not None else tensor
        is_large = tensor.numel() >= MIN_ELEMENTS and tensor.layout == torch.strided
        return is_large and not isinstance(base, nn.Parameter) and self.is_on_device(tensor)

    def is_on_device(self, tensor: Tensor) -> bool:
        return tensor.device != HOST

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        """Copies run on one of their own, beside the computation."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]
