"""Weights as flat bytes, to be sent or written: each bucket is one byte tensor, the content of its file after the
header."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from areal_like.weights import device_copies, gpu_memory
from areal_like.weights.buckets import (
    MAX_SENT_BYTES,
    TensorInfo,
    bucket_file,
    bucket_hash,
    dtype_name,
    file_header,
    file_order,
    places,
    plan_buckets,
    publishable,
)
from areal_like.weights.device_checksum import checksum_texts, checksum_values
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
    """A copy of a version without hashes: these can be computed in another thread, as tensors may change already.
    `done`: when a GPU has copied all, and `checksums`, those of its tensors, are in main memory."""

    def __init__(self, buckets: list[BucketCopy], checksums: Tensor | None, done: "torch.cuda.Event | None") -> None:
        self._buckets, self._checksums, self._done = buckets, checksums, done

    @property
    def num_bytes(self) -> int:
        return sum(bucket.content.nbytes for bucket in self._buckets)

    def hashed(self, version: int, probe: Probe | None, run_id: str) -> FlatWeights:
        if self._done is not None:
            self._done.synchronize()
        texts = iter(() if self._checksums is None else checksum_texts(self._checksums))
        buckets = [_hashed(number, _with_checksums(bucket, texts)) for number, bucket in enumerate(self._buckets)]
        return FlatWeights(Index(version, run_id, buckets, probe), [bucket.content for bucket in self._buckets])


def copy_weights(
    tensors: Iterable[tuple[str, Tensor]],
    buffer: FlatWeights | None = None,
    max_bucket_bytes: int = MAX_SENT_BYTES,
    stays_on_gpu: bool = False,
) -> WeightCopy:
    """Copies tensors, one bucket at a time: to the host, from a GPU into pinned memory, or within the GPU, which is not
    waited for. `buffer`: an unused version whose memory is reused."""
    copies: list[BucketCopy] = []
    free = [] if buffer is None else list(buffer.contents)
    gpu: torch.device | None = None
    for bucket in plan_buckets(publishable(tensors), max_bucket_bytes):
        gpu = next((tensor.device for _, tensor in bucket if device_copies.is_on_gpu(tensor)), gpu)
        size = sum(tensor.nbytes for _, tensor in bucket)
        content = _take(free, size, gpu, stays_on_gpu)
        copies.append(_copy(content, bucket))
        bucket.clear()  # or its tensors would be kept until the next bucket is complete
    if gpu is None:
        return WeightCopy(copies, None, None)
    values = [copy.checksums for copy in copies if copy.checksums is not None]
    checksums = device_copies.start_read_back(torch.cat(values)) if values else None
    return WeightCopy(copies, checksums, device_copies.when_done(gpu))


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


def _take(free: list[Tensor], size: int, gpu: torch.device | None, stays_on_gpu: bool) -> Tensor:
    """Reuses memory of the same size, which is faster to write than new memory."""
    index = next((number for number, content in enumerate(free) if content.nbytes == size), None)
    if index is not None:
        return free.pop(index)
    if gpu is not None and stays_on_gpu:
        return gpu_memory.shareable_memory(size, gpu)
    return device_copies.host_memory(size, gpu is not None)


def _copy(content: Tensor, bucket: list[tuple[str, Tensor]]) -> BucketCopy:
    """Checksums are of what is copied from, or of the copy where this is on the GPU."""
    tensors = dict(bucket)
    infos = [TensorInfo(name, dtype_name(tensor.dtype), tuple(tensor.shape), "") for name, tensor in bucket]
    copies: dict[str, Tensor] = {}
    for info, place in places(infos):
        tensor, copies[info.name] = tensors[info.name].detach(), content[place]
        as_tensor(info, content[place]).copy_(tensor, non_blocking=device_copies.is_on_gpu(tensor))
    if device_copies.is_on_gpu(content):
        return BucketCopy(infos, content, checksum_values([copies[info.name] for info in infos]))
    on_gpu = [tensor for _, tensor in bucket if device_copies.is_on_gpu(tensor)]
    return BucketCopy(infos, content, checksum_values(on_gpu) if len(on_gpu) == len(bucket) else None)


def _with_checksums(copy: BucketCopy, texts: Iterator[str]) -> BucketCopy:
    if copy.checksums is None:
        return copy
    return copy._replace(infos=[info._replace(checksum=next(texts)) for info in copy.infos])


def _hashed(number: int, copy: BucketCopy) -> Bucket:
    """Content on a GPU is identified by its checksum, which was computed there."""
    if device_copies.is_on_gpu(copy.content):
        hashes = {info.name: info.checksum for info in copy.infos}
    else:
        hashes = {
            info.name: hash_of(info.dtype, info.shape, copy.content[place].numpy().data)
            for info, place in places(copy.infos)
        }
    infos = [info._replace(hash=hashes[info.name]) for info in copy.infos]
    ordered = file_order(infos)
    header = file_header(ordered)
    return Bucket(bucket_file(number), len(header) + copy.content.nbytes, bucket_hash(header, ordered), infos)
