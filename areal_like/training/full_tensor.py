"""Sharded tensors put together."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor, on every rank; all must call it. One that is not sharded is whole already."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
