"""Weights in the form that is sent: each bucket is one byte tensor, the content of its file after the header."""

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
from areal_like.weights.fingerprint import device_checksums, dtype_name
from areal_like.weights.hashes import hash_of
from areal_like.weights.index import Bucket, Index
from areal_like.weights.probe import Probe

MAX_SENT_BYTES = 64 * 2**20
"""Bucket size for sending: a receiver needs so much memory beside the weights."""


@dataclass(frozen=True, eq=False)
class FlatWeights:
    """A copy of a version, independent of further training. `contents[i]` are the bytes of bucket i."""

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
    buffer: FlatWeights | None = None,
    max_bucket_bytes: int = MAX_SENT_BYTES,
) -> FlatWeights:
    """Copies tensors to the host, one bucket at a time. `buffer`: an unused version whose memory is reused."""
    buckets, contents = [], []
    free = [] if buffer is None else list(buffer.contents)
    for number, bucket in enumerate(plan_buckets(require_unique_names(tensors), max_bucket_bytes)):
        content = _take(free, sum(tensor.nbytes for _, tensor in bucket), bucket[0][1].is_cuda)
        buckets.append(_fill(content, number, bucket))
        contents.append(content)
        bucket.clear()  # or its tensors would be kept until the next bucket is complete
    return FlatWeights(Index(version, run_id, buckets, probe), contents)


def tensor_in(content: Tensor, info: TensorInfo, at: int) -> Tensor:
    """The tensor at byte offset `at` of a bucket."""
    return content[at : at + info.nbytes].view(getattr(torch, info.dtype)).reshape(info.shape)


def _take(free: list[Tensor], size: int, is_pinned: bool) -> Tensor:
    """Reuses memory of the same size, which is faster to write than new memory."""
    index = next((number for number, content in enumerate(free) if content.nbytes == size), None)
    return torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned) if index is None else free.pop(index)


def _fill(content: Tensor, number: int, bucket: list[tuple[str, Tensor]]) -> Bucket:
    tensors = dict(bucket)
    infos = [TensorInfo(name, dtype_name(tensor.dtype), tuple(tensor.shape), "") for name, tensor in bucket]
    hashes, at = {}, 0
    for info in file_order(infos):
        tensor_in(content, info, at).copy_(tensors[info.name].detach())
        part = content[at : at + info.nbytes]
        hashes[info.name] = hash_of(info.dtype, info.shape, part.numpy().data)
        at += info.nbytes
    on_device = device_checksums(bucket)
    infos = [info._replace(hash=hashes[info.name], checksum=on_device.get(info.name, "")) for info in infos]
    ordered = file_order(infos)
    header = file_header(ordered)
    return Bucket(bucket_file(number), len(header) + content.nbytes, bucket_hash(header, ordered), infos)
