"""Packs new weights for vLLM's kernels on a CPU beside the live ones, so that an update only exchanges them. Runs in
vLLM's worker.

vLLM's own reload allocates, fills, packs and copies every layer while nothing is generated.
"""

from collections.abc import Callable, Mapping
from typing import Any

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


def pack_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> PackedWeights | None:
    """None if vLLM itself must load them: on a GPU, and for a model with layers that are quantized, split over
    processes, or not the dense ones of a language model."""
    if not _is_dense_on_cpu(model):
        return None
    parts: dict[tuple[nn.Module, str], dict[int | None, Tensor]] = {}
    for name, tensor in tensors.items():
        place = find_tensor(model, name)
        if place is None:
            return None
        parts.setdefault((place.module, place.parameter), {})[place.part] = tensor
    written = [id(getattr(module, parameter)) for module, parameter in parts]
    if sorted(written) != sorted(map(id, model.parameters())):
        return None
    packed = PackedWeights()
    try:
        for (module, parameter), each in parts.items():
            _add(packed, model, module, parameter, _whole(module, each))
    except _OtherShape:
        return None
    return packed


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


def _add(packed: PackedWeights, model: nn.Module, module: Any, parameter: str, new: Tensor) -> None:
    live = getattr(module, parameter).detach()
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
