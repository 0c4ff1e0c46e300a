"""The served weights of a vLLM model, under the names of its checkpoint. Runs in vLLM's worker."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

BLOCK = 1024
"""Columns per multiplication."""
MAX_PRODUCTS = 1e9
"""Multiplications in one call, some hundredths of a second: generation waits for them."""


class ServedTensor(NamedTuple):
    """A tensor as the model uses it; with `signs_lost` a -0 appears as 0."""

    tensor: Tensor
    signs_lost: bool = False


class ModuleTensor(NamedTuple):
    """The place of a checkpoint tensor in the model: a parameter, or part number `part` of a fused parameter."""

    module: nn.Module
    parameter: str
    part: int | None


def plain_tensors(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, ServedTensor]]:
    """The named tensors that are readable in this process's memory."""
    for name, shape in shapes.items():
        place = find_tensor(model, name)
        if place is None or is_packed(place.module, place.parameter, shape):
            continue
        tensor = _rows(place, getattr(place.module, place.parameter).detach())
        if tensor is not None and (tensor := _unpadded(tensor, shape)) is not None:
            yield name, ServedTensor(tensor)


def packed_tensors(
    model: nn.Module, shapes: Mapping[str, tuple[int, ...]], turn: int
) -> Iterator[tuple[str, ServedTensor]]:
    """Tensors that CPU kernels have packed, with heads tied to the embeddings: read by multiplying with a unit matrix.
    One call reads some of them, from number `turn` on. Call it between two steps of the worker and in its own thread,
    as these kernels share their memory."""
    places = []
    for name, shape in shapes.items():
        place = find_tensor(model, name)
        if place is not None and is_packed(place.module, place.parameter, shape):
            places.append((name, place, shape))
        elif place is not None:
            places += [(name, ModuleTensor(head, "weight", None), shape) for head in tied_heads(model, place.module)]
    places = [place for place in places if _products(place[2]) <= MAX_PRODUCTS]
    left, module, whole = MAX_PRODUCTS, None, torch.empty(0)
    first = turn % max(1, len(places))
    for name, place, shape in places[first:] + places[:first]:
        if place.module is not module:
            left -= _products(shape)
            if left < 0:
                break
            module, whole = place.module, _unpacked(place, shape[1])
        tensor = _rows(place, whole)
        if tensor is not None and (tensor := _unpadded(tensor, shape)) is not None:
            yield name, ServedTensor(tensor, signs_lost=True)


def _products(shape: tuple[int, ...]) -> int:
    """Multiplications for reading a matrix of this shape."""
    return math.prod(shape) * shape[1]


def repack_tied(model: nn.Module) -> None:
    """vLLM 0.32 does not reload a head that is tied to the embeddings, as no weights have its name; on a CPU the head
    would keep its packed copy of the old weights."""
    for module in model.modules():
        for head in tied_heads(model, module):
            head.quant_method.process_weights_after_loading(head)


def is_packed(module: nn.Module, parameter: str, shape: Sequence[int]) -> bool:
    """Whether the model computes with a packed copy of the parameter."""
    return hasattr(module, "cpu_linear") and parameter == "weight" and len(shape) == 2 and not _embeds(module)


def is_vocabulary(module: nn.Module) -> bool:
    """Whether it is an embedding or an output head, which vLLM pads with rows of zeros."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    return isinstance(module, VocabParallelEmbedding)


def _embeds(module: nn.Module) -> bool:
    """Whether it is an embedding and no output head."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return is_vocabulary(module) and not isinstance(module, ParallelLMHead)


def tied_heads(model: nn.Module, module: nn.Module) -> list[Any]:
    """Heads that are tied to these embeddings and packed for a CPU."""
    if not _embeds(module):
        return []
    modules = (other for other in model.modules() if other is not module and hasattr(other, "cpu_linear"))
    return [other for other in modules if getattr(other, "weight", None) is module.weight]


def find_tensor(model: nn.Module, name: str) -> ModuleTensor | None:
    path, _, parameter = name.rpartition(".")
    parent, _, leaf = path.rpartition(".")
    fusions: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    for fused, parts in fusions.items():
        if leaf in parts and len(parts) > 1 and (module := _module(model, f"{parent}.{fused}")) is not None:
            return ModuleTensor(module, parameter, parts.index(leaf)) if hasattr(module, parameter) else None
    module = _module(model, path)
    if module is None or not isinstance(getattr(module, parameter, None), Tensor):
        return None
    return ModuleTensor(module, parameter, None)


def _module(model: nn.Module, path: str) -> nn.Module | None:
    try:
        module: Any = model.get_submodule(path)
    except AttributeError:
        return None
    base: nn.Module = getattr(module, "base_layer", module)  # inside the wrapper of an adapter
    return base


def _rows(place: ModuleTensor, whole: Tensor) -> Tensor | None:
    if place.part is None:
        return whole
    sizes = getattr(place.module, "output_partition_sizes", None)
    if sizes is None or sum(sizes) != whole.shape[0]:
        return None
    return whole.narrow(0, sum(sizes[: place.part]), sizes[place.part])


def _unpadded(tensor: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """Without the padding rows of a vocabulary; None for a part of a tensor that is split over processes."""
    if tuple(tensor.shape) == shape:
        return tensor
    if tensor.dim() == len(shape) and tensor.shape[1:] == shape[1:] and tensor.shape[0] > shape[0]:
        return tensor[: shape[0]]
    return None


def _unpacked(place: ModuleTensor, columns: int) -> Tensor:
    """The layer's outputs for unit vectors are its columns, exactly: all other products are 0."""
    module: Any = place.module
    dtype = getattr(module, place.parameter).dtype
    parts = []
    with torch.inference_mode():
        for at in range(0, columns, BLOCK):
            count = min(BLOCK, columns - at)
            units = torch.zeros(count, columns, dtype=dtype)
            units[torch.arange(count), torch.arange(at, at + count)] = 1
            parts.append(module.quant_method.apply(module, units, None).T)
        return torch.cat(parts, dim=1).contiguous()
