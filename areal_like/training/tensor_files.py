"""Writes tensors to a file in the format of safetensors or of torch, hashed on the way."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from areal_like.process.hashed_files import HashedFiles, HashingStream
from areal_like.weights.buckets import DTYPES
from areal_like.weights.fingerprint import dtype_name, raw_bytes

FILE_ORDER = (
    *("uint64", "int64", "float64", "float32", "uint32", "int32", "bfloat16", "float16", "uint16", "int16"),
    *("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"),
)
"""Types in the order of safetensors' own files: wider ones first, so that all are aligned."""


def write_tensors(files: HashedFiles, path: Path, tensors: Mapping[str, Tensor]) -> None:
    """In the format of the file's suffix."""
    with files.open(path) as stream:
        if path.suffix == ".safetensors":
            _write_safetensors(stream, tensors)
        else:
            torch.save(dict(tensors), stream)  # type: ignore[arg-type]


def _write_safetensors(stream: HashingStream, tensors: Mapping[str, Tensor]) -> None:
    """The bytes are those that safetensors' own writer makes."""
    types = {name: dtype_name(tensor.dtype) for name, tensor in tensors.items()}
    ordered = sorted(tensors, key=lambda name: (FILE_ORDER.index(types[name]), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in ordered:
        tensor, end = tensors[name], at + tensors[name].nbytes
        header[name] = {"dtype": DTYPES[types[name]].code, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    for name in ordered:
        stream.write(raw_bytes(tensors[name]))
