"""Groups tensors into buckets: each is a safetensors file, readable without a copy."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import xxhash

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MAX_BUCKET_BYTES = 256 * 2**20
MAX_SENT_BYTES = 64 * 2**20
"""Bucket size for sending: a receiver needs so much memory beside the weights."""


class _DType(NamedTuple):
    code: str
    size: int


DTYPES = {
    "float64": _DType("F64", 8),
    "float32": _DType("F32", 4),
    "bfloat16": _DType("BF16", 2),
    "float16": _DType("F16", 2),
    "float8_e4m3fn": _DType("F8_E4M3", 1),
    "float8_e5m2": _DType("F8_E5M2", 1),
    "int64": _DType("I64", 8),
    "int32": _DType("I32", 4),
    "int16": _DType("I16", 2),
    "uint64": _DType("U64", 8),
    "uint32": _DType("U32", 4),
    "uint16": _DType("U16", 2),
    "int8": _DType("I8", 1),
    "uint8": _DType("U8", 1),
    "bool": _DType("BOOL", 1),
}
"""Types that can be published: torch's name -> safetensors' code and size."""


class TensorInfo(NamedTuple):
    """A tensor's description. `hash` is over type, shape and content; `checksum` is that of `device_checksum`, empty if
    the tensor was published from a CPU. One whose copy has never left its GPU has the checksum for a hash."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    hash: str
    checksum: str = ""

    @property
    def has_checksum_only(self) -> bool:
        return bool(self.checksum) and self.hash == self.checksum

    @property
    def nbytes(self) -> int:
        size = DTYPES[self.dtype].size
        for length in self.shape:
            size *= length
        return size


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


def plan_buckets(tensors: Iterable[tuple[str, T]], max_bytes: int = MAX_BUCKET_BYTES) -> Iterator[list[tuple[str, T]]]:
    """Puts consecutive tensors into buckets of up to `max_bytes`; a larger tensor gets its own bucket. Lazy: only one
    bucket of tensors needs to be in memory."""
    bucket: list[tuple[str, T]] = []
    held = 0
    for name, tensor in tensors:
        if bucket and held + tensor.nbytes > max_bytes:
            yield bucket
            bucket, held = [], 0
        bucket.append((name, tensor))
        held += tensor.nbytes
    if bucket:
        yield bucket


def publishable(tensors: Iterable[tuple[str, "Tensor"]]) -> Iterator[tuple[str, "Tensor"]]:
    """The same tensors; raises ValueError at a repeated name, and at a type that cannot be published."""
    names: set[str] = set()
    for name, tensor in tensors:
        if name in names:
            raise ValueError(f"tensor {name} is given twice; tied weights are published once")
        names.add(name)
        if (dtype := dtype_name(tensor.dtype)) not in DTYPES:
            known = f"{', '.join(sorted(DTYPES))} can be"
            raise ValueError(f"tensor {name} has the type {dtype}, which cannot be published; {known}: convert it")
        yield name, tensor


def dtype_name(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


def bucket_file(number: int) -> str:
    return f"bucket-{number:03d}.safetensors"


def file_order(infos: Sequence[TensorInfo]) -> list[TensorInfo]:
    """Wider types first, so that all tensors in a file are aligned."""
    return sorted(infos, key=lambda info: -DTYPES[info.dtype].size)


def places(infos: Sequence[TensorInfo]) -> Iterator[tuple[TensorInfo, slice]]:
    """The tensors of a bucket in the order of its file, each with its place in the bytes after the header."""
    at = 0
    for info in file_order(infos):
        yield info, slice(at, at + info.nbytes)
        at += info.nbytes


def file_header(ordered: Sequence[TensorInfo]) -> bytes:
    """Header of a safetensors file."""
    entries, at = {}, 0
    for info in ordered:
        end = at + info.nbytes
        entries[info.name] = {
            "dtype": DTYPES[info.dtype].code,
            "shape": list(info.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def bucket_hash(header: bytes, ordered: Sequence[TensorInfo]) -> str:
    """Hash of a bucket: over its header and the hashes of its tensors."""
    digest = xxhash.xxh3_64(header)
    for info in ordered:
        digest.update(info.hash.encode())
    return digest.hexdigest()
