"""Double buffer of a model's weights: the served set, and a standby set into which the next version is loaded."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch

from areal_like.weights.hub_names import HubNames
from areal_like.weights.persistent_buffers import persistent_buffers

ALIGNMENT = 64
"""Of torch's allocations, in bytes. At other alignments matrix products can differ in the last bits, and both sets must
give the same answers."""


class DoubleBuffer:
    """Parameters and persistent buffers by their names in the model's files; tied tensors once. Staging runs during
    generation. A swap exchanges the two sets without a copy, and a second swap undoes it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._hub_names = HubNames(model)
        self._live: dict[str, torch.Tensor] = {**dict(model.named_parameters()), **dict(persistent_buffers(model))}
        for tensor in self._live.values():
            if tensor.data_ptr() % ALIGNMENT:  # mapped from a file
                tensor.data = tensor.data.clone()
        self._standby: dict[str, torch.Tensor] | None = None
        self.swaps = 0
        self.addresses = self._live_addresses()
        """Of the set in use: what was captured with other addresses computes with the other set."""

    @property
    def device(self) -> torch.device:
        return next(iter(self._live.values())).device

    def expected(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.tensors()}

    def tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        return self._by_hub_name(self._live)

    def staged(self) -> Iterable[tuple[str, torch.Tensor]]:
        """What the next swap takes into use."""
        assert self._standby is not None, "nothing is staged"
        return self._by_hub_name(self._standby)

    @torch.no_grad()
    def stage(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copies new values into the standby set; raises ValueError if they are not those of the model."""
        live = dict(self.tensors())
        missing, unknown = live.keys() - tensors.keys(), tensors.keys() - live.keys()
        if missing:
            raise ValueError(f"weights: {_some(missing)} missing; the served model has them")
        if unknown:
            raise ValueError(f"weights: {_some(unknown)} unknown to the served model")
        for name, tensor in live.items():
            if tensors[name].shape != tensor.shape:
                shapes = f"{tuple(tensors[name].shape)}, and the served model has {tuple(tensor.shape)}"
                raise ValueError(f"weights: {name} has shape {shapes}")
        self.fill((name, tensors[name]) for name in live)

    @torch.no_grad()
    def fill(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copies tensors one by one; they are known to be those of the model."""
        if self._standby is None:
            self._standby = {name: torch.empty_like(parameter) for name, parameter in self._live.items()}
        standby = dict(self._by_hub_name(self._standby))
        with beside_generation(self.device):
            for name, tensor in tensors:
                standby[name].copy_(tensor)

    @torch.no_grad()
    def swap(self) -> None:
        assert self._standby is not None, "nothing is staged"
        self.swaps += 1
        for name, parameter in self._live.items():
            parameter.data, self._standby[name] = self._standby[name], parameter.data
        self.addresses = self._live_addresses()

    def _live_addresses(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for tensor in self._live.values())

    def _by_hub_name(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        return self._hub_names.rename((name, tensor.data) for name, tensor in tensors.items())


@contextmanager
def beside_generation(device: torch.device) -> Iterator[None]:
    """For another thread than the engine's: on a GPU its work runs on a stream of its own, not between the decoding
    steps, and is complete at the end."""
    if device.type != "cuda":
        yield
        return
    stream = _side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        stream.synchronize()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all: torch keeps freed memory for the stream that it was taken for."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _some(names: Iterable[str]) -> str:
    """The first few of many names."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more are" if len(ordered) > 3 else " are" if len(ordered) > 1 else " is"
    return ", ".join(ordered[:3]) + more
