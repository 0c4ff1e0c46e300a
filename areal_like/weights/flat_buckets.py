"""Weights as flat bytes, to be sent or written: each bucket is one byte tensor, the content of its file after the
header."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from areal_like.weights.buckets import (
    MAX_SENT_BYTES,
    TensorInfo,
    bucket_file,
    bucket_hash,
    file_header,
    file_order,
    places,
    plan_buckets,
    require_unique_names,
)
from areal_like.weights.device_checksum import checksum_texts, checksum_values
from areal_like.weights.fingerprint import dtype_name
from areal_like.weights.hashes import hash_of
from areal_like.weights.index import Bucket, Index
from areal_like.weights.probe import Probe


class BucketCopy(NamedTuple):
    """`infos` are without hashes, in publication order; `content` is in the order of the file."""

    infos: list[TensorInfo]
    content: Tensor
    checksums: Tensor | None = None
    """Values for tensors of a GPU, computed there."""


@dataclass(frozen=True, eq=False)
class FlatWeights:
    """A copy of a version, independent of further training. `contents[i]` are the bytes of bucket i."""

    index: Index
    contents: list[Tensor]

    @property
    def num_bytes(self) -> int:
        return sum(content.nbytes for content in self.contents)


class WeightCopy:
    """A copy of a version without hashes: these can be computed in another thread, as tensors may change already."""

    def __init__(self, buckets: list[BucketCopy]) -> None:
        self._buckets = buckets

    @property
    def num_bytes(self) -> int:
        return sum(bucket.content.nbytes for bucket in self._buckets)

    def hashed(self, version: int, probe: Probe | None, run_id: str) -> FlatWeights:
        buckets = [_hashed(number, bucket) for number, bucket in enumerate(self._buckets)]
        return FlatWeights(Index(version, run_id, buckets, probe), [bucket.content for bucket in self._buckets])


def copy_weights(
    tensors: Iterable[tuple[str, Tensor]], buffer: FlatWeights | None = None, max_bucket_bytes: int = MAX_SENT_BYTES
) -> WeightCopy:
    """Copies tensors to the host, one bucket at a time; from a GPU into pinned memory, with one synchronization at the
    end. `buffer`: an unused version whose memory is reused."""
    copies: list[BucketCopy] = []
    free = [] if buffer is None else list(buffer.contents)
    gpu: torch.device | None = None
    for bucket in plan_buckets(require_unique_names(tensors), max_bucket_bytes):
        gpu = next((tensor.device for _, tensor in bucket if is_on_gpu(tensor)), gpu)
        content = _take(free, sum(tensor.nbytes for _, tensor in bucket), gpu is not None)
        copies.append(_copy(content, bucket))
        bucket.clear()  # or its tensors would be kept until the next bucket is complete
    if gpu is not None:
        torch.cuda.current_stream(gpu).synchronize()
        copies = [_with_checksums(copy) for copy in copies]
    return WeightCopy(copies)


def flatten(
    version: int,
    tensors: Iterable[tuple[str, Tensor]],
    probe: Probe | None,
    run_id: str,
    buffer: FlatWeights | None = None,
    max_bucket_bytes: int = MAX_SENT_BYTES,
) -> FlatWeights:
    """Copies tensors and hashes the copies."""
    return copy_weights(tensors, buffer, max_bucket_bytes).hashed(version, probe, run_id)


def as_tensor(info: TensorInfo, content: Tensor) -> Tensor:
    """Bytes as a tensor of their type and shape."""
    return content.view(getattr(torch, info.dtype)).reshape(info.shape)


def write_bucket(folder: Path, bucket: Bucket, content: Tensor) -> None:
    """Writes the file of a bucket."""
    with (folder / bucket.file).open("wb") as file:
        file.write(file_header(file_order(bucket.tensors)))
        file.write(content.numpy().data)


def is_on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def host_memory(size: int, is_pinned: bool) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)


def _take(free: list[Tensor], size: int, is_pinned: bool) -> Tensor:
    """Reuses memory of the same size, which is faster to write than new memory."""
    index = next((number for number, content in enumerate(free) if content.nbytes == size), None)
    return host_memory(size, is_pinned) if index is None else free.pop(index)


def _copy(content: Tensor, bucket: list[tuple[str, Tensor]]) -> BucketCopy:
    tensors = dict(bucket)
    infos = [TensorInfo(name, dtype_name(tensor.dtype), tuple(tensor.shape), "") for name, tensor in bucket]
    for info, place in places(infos):
        tensor = tensors[info.name].detach()
        as_tensor(info, content[place]).copy_(tensor, non_blocking=is_on_gpu(tensor))
    on_gpu = [tensor for _, tensor in bucket if is_on_gpu(tensor)]
    return BucketCopy(infos, content, checksum_values(on_gpu) if len(on_gpu) == len(bucket) else None)


def _with_checksums(copy: BucketCopy) -> BucketCopy:
    if copy.checksums is None:
        return copy
    texts = checksum_texts(copy.checksums)
    return copy._replace(infos=[info._replace(checksum=text) for info, text in zip(copy.infos, texts, strict=True)])


def _hashed(number: int, copy: BucketCopy) -> Bucket:
    hashes = {
        info.name: hash_of(info.dtype, info.shape, copy.content[place].numpy().data)
        for info, place in places(copy.infos)
    }
    infos = [info._replace(hash=hashes[info.name]) for info in copy.infos]
    ordered = file_order(infos)
    header = file_header(ordered)
    return Bucket(bucket_file(number), len(header) + copy.content.nbytes, bucket_hash(header, ordered), infos)
