"""Tensors over several files, none of which is larger than it may be."""

from collections.abc import Mapping

from torch import Tensor


def split_by_size(tensors: Mapping[str, Tensor], most_bytes: float) -> list[list[str]]:
    """The names of each file, in their order. A tensor that is larger by itself has a file of its own."""
    files: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if files[-1] and size + tensor.nbytes > most_bytes:
            files.append([])
            size = 0
        files[-1].append(name)
        size += tensor.nbytes
    return files
