"""Converts torch tensors to bytes, hashes and descriptions for an index. Imports torch."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from areal_like.weights.buckets import TensorInfo
from areal_like.weights.buckets import dtype_name as dtype_name
from areal_like.weights.device_checksum import checksums, uses_checksums
from areal_like.weights.hashes import compare as compare
from areal_like.weights.hashes import hash_of as hash_of


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor; copied only from a GPU or if it is not contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def tensor_hash(tensor: Tensor) -> str:
    """The hash of a torch tensor; see `hash_of`."""
    return hash_of(dtype_name(tensor.dtype), tuple(tensor.shape), raw_bytes(tensor))


def tensor_hashes(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    return {name: tensor_hash(tensor) for name, tensor in tensors}


def describe_tensors(tensors: Sequence[tuple[str, Tensor]]) -> tuple[list[TensorInfo], dict[str, memoryview]]:
    """Descriptions of tensors for an index, and their bytes by name."""
    infos, contents = [], {}
    on_device = device_checksums(tensors)
    for name, tensor in tensors:
        contents[name] = raw_bytes(tensor)
        dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
        infos.append(TensorInfo(name, dtype, shape, hash_of(dtype, shape, contents[name]), on_device.get(name, "")))
    return infos, contents


def device_checksums(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """Of those tensors that are not on the CPU, computed where they are."""
    return checksums((name, tensor.detach()) for name, tensor in tensors if uses_checksums(tensor.device))
