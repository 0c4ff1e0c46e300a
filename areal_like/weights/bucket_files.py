"""Reads and verifies published files without torch, for processes that only forward weights."""

import mmap
from collections.abc import Container, Iterator, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_like.process.run_memory import SHARED_MEMORY
from areal_like.weights.buckets import TensorInfo, bucket_hash, file_header, file_order, places
from areal_like.weights.errors import BadWeights, with_layer
from areal_like.weights.hashes import hash_of
from areal_like.weights.index import Bucket, Index

Bytes = NDArray[np.uint8]
"""The content of a tensor as it lies in its file."""


def check_version(index: Index, newer_than: int, run_id: str | None) -> None:
    """Refuses a version of another run (None: accepts any), and one that is not newer than the served one."""
    if run_id is not None and index.run_id != run_id:
        raise BadWeights(
            f"version {index.version} of the weights belongs to run {index.run_id}, and this is run {run_id}"
        )
    if index.version <= newer_than:
        raise BadWeights(
            f"version {index.version} of the weights is not newer than {newer_than}, which is served: it is stale"
        )


def read_bucket(folder: Path, bucket: Bucket, version: int) -> dict[str, Bytes]:
    """The tensors of a bucket in the order of its file, with verified hashes. If the file is in shared memory, they are
    that memory: copy what is changed or kept."""
    return {info.name: content for info, content in iterate_bucket(folder, bucket, version)}


def iterate_bucket(
    folder: Path, bucket: Bucket, version: int, mine: Container[str] | None = None
) -> Iterator[tuple[TensorInfo, Bytes]]:
    """The same, each as soon as its hash is verified. With `mine` only those tensors are verified: for files in shared
    memory, of which other processes of this machine verify the rest."""
    content = read_bucket_file(folder, bucket, version)
    ordered = file_order(bucket.tensors)
    header = file_header(ordered)
    _check_header(content[: len(header)], header, ordered, bucket, version)
    payload = content[len(header) :]
    for info, place in places(bucket.tensors):
        is_mine = mine is None or info.name in mine
        yield info, _checked(info, payload[place], bucket.file, version) if is_mine else payload[place]


def iterate_share(
    folder: Path, bucket: Bucket, version: int, mine: Container[str]
) -> Iterator[tuple[TensorInfo, Bytes]]:
    """Reads and verifies these tensors of a bucket, and nothing else of its file but the header."""
    path, ordered = folder / bucket.file, file_order(bucket.tensors)
    _check_size(path, bucket, version)
    header = file_header(ordered)
    with path.open("rb", buffering=0) as file:
        _check_header(_read_part(file, len(header)), header, ordered, bucket, version)
        for info, place in places(bucket.tensors):
            if info.name in mine:
                file.seek(len(header) + place.start)
                yield info, _checked(info, _read_part(file, info.nbytes), bucket.file, version)


def read_bucket_file(folder: Path, bucket: Bucket, version: int) -> Bytes:
    """The whole file, if it has its published size."""
    path = folder / bucket.file
    _check_size(path, bucket, version)
    return read_bytes(path, bucket.bytes)


def _check_size(path: Path, bucket: Bucket, version: int) -> None:
    size = path.stat().st_size if path.exists() else None
    if size != bucket.bytes:
        problem = "is missing" if size is None else f"has {size} bytes and not {bucket.bytes}"
        raise BadWeights(
            f"version {version} of the weights: bucket {bucket.file} {problem}: it was not published completely, or "
            "changed since"
        )


def is_mapped(path: Path) -> bool:
    """Whether files there are mapped: those in shared memory. Elsewhere a mapped page may be read again after it was
    verified."""
    return path.is_relative_to(SHARED_MEMORY)


def read_bytes(path: Path, size: int) -> Bytes:
    """Maps the file if it is in shared memory; else reads it."""
    with path.open("rb", buffering=0) as file:
        if is_mapped(path):
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
        return _read_part(file, size)


def _read_part(file: RawIOBase, size: int) -> Bytes:
    content = np.empty(max(size, 1), np.uint8)[:size]  # torch views no empty array as another type
    view: Any = content.data
    read = 0
    while read < size and (count := file.readinto(view[read:])):
        read += count
    return content


def _check_header(found: Bytes, header: bytes, ordered: Sequence[TensorInfo], bucket: Bucket, version: int) -> None:
    if found.tobytes() != header or bucket_hash(header, ordered) != bucket.hash:
        raise BadWeights(
            f"version {version} of the weights: bucket {bucket.file} is corrupted: its header is not the one that was "
            "published"
        )


def _checked(info: TensorInfo, content: Bytes, file: str, version: int) -> Bytes:
    if hash_of(info.dtype, info.shape, content.data) != info.hash:
        raise BadWeights(
            f"version {version} of the weights: {with_layer(info.name)} is corrupted: its content in {file} does not "
            f"have the hash {info.hash} that it was published with"
        )
    return content
