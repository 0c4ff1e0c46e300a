"""Gathering of sharded tensors."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor, on every rank; all must call it. Tensors that are not sharded are returned as they are."""
    if not isinstance(tensor, DTensor):
        return tensor
    # A single rank has all of it: gathering would take many times as long as a copy of a small one.
    return tensor.full_tensor() if tensor.device_mesh.size() > 1 else tensor.to_local()
