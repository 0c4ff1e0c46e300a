"""Splits tensors into files of limited size."""

from collections.abc import Mapping

from torch import Tensor


def split_by_size(tensors: Mapping[str, Tensor], max_bytes: float) -> list[list[str]]:
    """The tensor names of each file, in order. A larger tensor gets a file for itself."""
    files: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if files[-1] and size + tensor.nbytes > max_bytes:
            files.append([])
            size = 0
        files[-1].append(name)
        size += tensor.nbytes
    return files
