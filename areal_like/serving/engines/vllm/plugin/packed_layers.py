"""Packs new weights for vLLM's kernels on a CPU beside the live ones, so that an update only exchanges them. Runs in
vLLM's worker.

vLLM's own reload allocates, fills, packs and copies every layer while nothing is generated.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import torch
from torch import Tensor, nn

from areal_like.serving.engines.vllm.plugin.weight_view import find_tensor, is_packed, is_vocabulary, tied_heads

Kernel = Callable[..., Tensor]
"""A layer's product with its packed weights."""


class PackedWeights:
    """New weights in the form in which the model computes with them."""

    def __init__(self) -> None:
        self._plain: list[tuple[Tensor, Tensor]] = []
        """Live tensors, and their new contents."""
        self._kernels: list[tuple[Any, Kernel]] = []
        """Layers, and their new kernels."""

    def copy(self, live: Tensor, new: Tensor) -> None:
        self._plain.append((live, new))

    def pack(self, layer: Any, weight: Tensor) -> None:
        """vLLM packs the weight of a stand-in, and the layer gets the kernel with `exchange`."""
        stand_in: Any = nn.Module()
        stand_in.weight = nn.Parameter(weight, requires_grad=False)
        layer.quant_method.process_weights_after_loading(stand_in)
        self._kernels.append((layer, stand_in.cpu_linear))

    def exchange(self) -> None:
        """Makes them live. The old kernels are kept in here, as freeing them takes time."""
        with torch.inference_mode():
            for live, new in self._plain:
                live.copy_(new)
        old = [(layer, layer.cpu_linear) for layer, _ in self._kernels]
        for layer, kernel in self._kernels:
            layer.cpu_linear = kernel
        self._plain, self._kernels = [], old


class WeightPacker:
    """Packs new weights as they come, in a thread of its own. Use it with `with`."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._packs = model, _is_dense_on_cpu(model)
        self._parts: dict[tuple[Any, str], dict[int | None, Tensor]] = {}
        self._packed = PackedWeights()
        self._thread = ThreadPoolExecutor(1)
        self._jobs: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def add(self, name: str, tensor: Tensor) -> None:
        """The tensor must not change any more."""
        place = find_tensor(self._model, name) if self._packs else None
        if place is None:
            self._packs = False
            return
        module: Any = place.module
        parts = self._parts.setdefault((module, place.parameter), {})
        parts[place.part] = tensor
        if None in parts or len(parts) == len(module.output_partition_sizes):
            self._jobs.append(self._thread.submit(_pack, self._packed, self._model, module, place.parameter, parts))

    def packed(self) -> PackedWeights | None:
        """When all tensors were added. None if vLLM itself must load them: on a GPU, and for a model with layers that
        are quantized, split over processes, or not the dense ones of a language model."""
        if not self._packs:
            return None
        try:
            for job in self._jobs:
                job.result()
        except _OtherShape:
            return None
        parameters = sorted(id(parameter) for parameter in self._model.parameters())
        filled = sorted(id(getattr(module, parameter)) for module, parameter in self._parts)
        return self._packed if filled == parameters and len(self._jobs) == len(self._parts) else None


class _OtherShape(Exception):
    """A tensor does not have the shape or type of its place."""


def _is_dense_on_cpu(model: nn.Module) -> bool:
    """Whether nothing is derived from the weights but the packed ones of linear layers and heads."""
    from vllm.model_executor.layers.attention import Attention, is_deferred_attention_layer
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    known = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod, type(None))
    for layer in model.modules():
        if type(getattr(layer, "quant_method", None)) not in known or getattr(layer, "tp_size", 1) != 1:
            return False
        if is_deferred_attention_layer(layer) and type(layer) is not Attention:
            return False
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    return on_cpu and not hasattr(model, "process_weights_after_loading")


def _whole(module: Any, parts: Mapping[int | None, Tensor]) -> Tensor:
    """The new contents of a parameter, fused from its parts."""
    if None in parts:
        return parts[None]
    sizes = list(module.output_partition_sizes)
    if [len(parts[number]) if number in parts else None for number in range(len(sizes))] != sizes:
        raise _OtherShape
    return torch.cat([parts[number] for number in range(len(sizes))])


def _pack(
    packed: PackedWeights, model: nn.Module, module: Any, parameter: str, parts: Mapping[int | None, Tensor]
) -> None:
    live, new = getattr(module, parameter).detach(), _whole(module, parts)
    if new.dtype != live.dtype:
        raise _OtherShape
    if not live.numel():  # only the kernel has it
        if tuple(new.shape) != (module.output_size, module.input_size):
            raise _OtherShape
    else:
        rows = len(new)
        if new.shape[1:] != live.shape[1:] or rows > len(live) or (rows < len(live) and not is_vocabulary(module)):
            raise _OtherShape
        packed.copy(live[:rows], new)
        new = _padded(new, len(live))
    kernels = [module] if is_packed(module, parameter, new.shape) else tied_heads(model, module)
    for layer in kernels:
        packed.pack(layer, new)


def _padded(tensor: Tensor, rows: int) -> Tensor:
    if len(tensor) == rows:
        return tensor
    whole = tensor.new_zeros(rows, *tensor.shape[1:])
    whole[: len(tensor)] = tensor
    return whole
