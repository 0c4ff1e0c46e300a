"""Gathering of sharded tensors."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor, on every rank; all must call it. Tensors that are not sharded are returned as they are."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
