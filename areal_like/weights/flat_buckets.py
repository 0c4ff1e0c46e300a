"""Weights as they are sent: each bucket one row of bytes, which is what would stand in its file after the header."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from areal_like.weights.buckets import (
    TensorInfo,
    bucket_file,
    bucket_hash,
    file_header,
    file_order,
    plan_buckets,
    require_unique_names,
)
from areal_like.weights.fingerprint import dtype_name
from areal_like.weights.hashes import hash_of
from areal_like.weights.index import Bucket, Index
from areal_like.weights.probe import Probe

MAX_SENT_BYTES = 64 * 2**20
"""Of a bucket that is sent: as much as who receives must hold beside the weights."""


@dataclass(frozen=True, eq=False)
class FlatWeights:
    """A version, copied: training changes nothing of it any more. `contents[i]` are the bytes of bucket i."""

    index: Index
    contents: list[Tensor]

    @property
    def num_bytes(self) -> int:
        return sum(content.nbytes for content in self.contents)


def flatten(
    version: int,
    tensors: Iterable[tuple[str, Tensor]],
    probe: Probe | None,
    run_id: str,
    room: FlatWeights | None = None,
    max_bucket_bytes: int = MAX_SENT_BYTES,
) -> FlatWeights:
    """Copies tensors to the host, one bucket of them at a time. `room` is a version that nobody needs any more, whose
    memory is taken."""
    buckets, contents = [], []
    free = [] if room is None else list(room.contents)
    for number, bucket in enumerate(plan_buckets(require_unique_names(tensors), max_bucket_bytes)):
        content = _take(free, sum(tensor.nbytes for _, tensor in bucket), bucket[0][1].is_cuda)
        buckets.append(_fill(content, number, bucket))
        contents.append(content)
        bucket.clear()  # or its tensors would be there until the next bucket is
    return FlatWeights(Index(version, run_id, buckets, probe), contents)


def tensor_in(content: Tensor, info: TensorInfo, at: int) -> Tensor:
    """One of a bucket's tensors, which begins after so many bytes of it."""
    return content[at : at + info.nbytes].view(getattr(torch, info.dtype)).reshape(info.shape)


def _take(free: list[Tensor], size: int, is_pinned: bool) -> Tensor:
    """Memory that was used before is faster to write to."""
    found = next((number for number, content in enumerate(free) if content.nbytes == size), None)
    return torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned) if found is None else free.pop(found)


def _fill(content: Tensor, number: int, bucket: list[tuple[str, Tensor]]) -> Bucket:
    given = dict(bucket)
    infos = [TensorInfo(name, dtype_name(tensor.dtype), tuple(tensor.shape), "") for name, tensor in bucket]
    hashes, at = {}, 0
    for info in file_order(infos):
        tensor_in(content, info, at).copy_(given[info.name].detach())
        part = content[at : at + info.nbytes]
        hashes[info.name] = hash_of(info.dtype, info.shape, part.numpy().data)
        at += info.nbytes
    infos = [info._replace(hash=hashes[info.name]) for info in infos]
    ordered = file_order(infos)
    header = file_header(ordered)
    return Bucket(bucket_file(number), len(header) + content.nbytes, bucket_hash(header, ordered), infos)
