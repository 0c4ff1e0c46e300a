"""Rows of tensors sharded along dimension 0, as FSDP does."""

from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


class RowRange(NamedTuple):
    start: int
    num: int


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part, not a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_group(tensor: Tensor) -> dist.ProcessGroup | None:
    """The ranks that share the tensor; None where this rank has all of it."""
    if not isinstance(tensor, DTensor) or (place := _sharded_mesh_dim(tensor)) is None:
        return None
    return tensor.device_mesh.get_group(place)


def split_rows(num_rows: int, num_ranks: int) -> list[RowRange]:
    """As `torch.chunk`: the last ranks may have fewer rows, or none."""
    size = -(-num_rows // num_ranks)
    starts = [min(rank * size, num_rows) for rank in range(num_ranks)]
    return [RowRange(start, min(size, num_rows - start)) for start in starts]


def local_rows(tensor: Tensor) -> RowRange:
    if not isinstance(tensor, DTensor) or (place := _sharded_mesh_dim(tensor)) is None:
        return RowRange(0, len(tensor) if tensor.dim() else 1)
    return split_rows(len(tensor), tensor.device_mesh.size(place))[tensor.device_mesh.get_local_rank(place)]


def _sharded_mesh_dim(tensor: DTensor) -> int | None:
    """The dimension of the mesh along which rows are sharded."""
    shards = {place: each for place, each in enumerate(tensor.placements) if isinstance(each, Shard)}
    assert len(shards) <= 1 and all(shard.dim == 0 for shard in shards.values()), tensor.placements
    return next(iter(shards), None)
