"""Weights of which each worker of an engine keeps a share, passed from one to all while they are applied. Runs in the
engine's environment, in the process group of its workers."""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from areal_like.weights.buckets import TensorInfo
from areal_like.weights.flat_buckets import as_tensor
from areal_like.weights.hash_shares import hash_shares
from areal_like.weights.index import Index


def exchanged(
    index: Index, kept: Mapping[str, Tensor], workers: int, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """All tensors on the worker's device, one bucket at a time. Every worker must iterate over it at the same time."""
    shares = hash_shares(index.tensors, workers)
    owners = {name: rank for rank, share in enumerate(shares) for name in share}
    for bucket in index.buckets:
        contents = [(info, _content(info, kept, device)) for info in bucket.tensors]
        sent = [dist.broadcast(content, owners[info.name], async_op=True) for info, content in contents if len(content)]
        for work in sent:
            work.wait()
        for info, content in contents:
            yield info.name, as_tensor(info, content)


def _content(info: TensorInfo, kept: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """As bytes. What is not kept gets memory of its own: an engine may collect the tensors of a layer."""
    tensor = kept.get(info.name)
    if tensor is None:
        return torch.empty(info.nbytes, dtype=torch.uint8, device=device)
    return tensor.to(device).reshape(-1).view(torch.uint8)
