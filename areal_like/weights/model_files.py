"""The tensors in a model's folder with the hashes that they have in the precision of a server. Imports no torch."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from areal_like.weights.buckets import TensorInfo
from areal_like.weights.errors import BadWeights
from areal_like.weights.hashes import hash_of
from areal_like.weights.verify import DTYPE_OF_CODE, Expected

FLOATS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
"""Types between which tensors are converted; numpy knows bfloat16 only as bits."""


def model_tensors(folder: Path, dtype: str, expected: Expected | None = None) -> list[TensorInfo]:
    """Floating point tensors in the type that `expected` gives them, else `dtype`. Those of a type that cannot be
    converted are left out, as nothing can be compared with them."""
    try:
        found = list(_tensors(folder, dtype, expected or {}))
    except (OSError, ValueError, KeyError) as fault:
        raise BadWeights(f"{folder}: its weights cannot be read: {fault}") from fault
    if not found:
        raise BadWeights(f"{folder}: holds no safetensors files, with which the served weights could be compared")
    return found


def _tensors(folder: Path, dtype: str, expected: Expected) -> Iterator[TensorInfo]:
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: Mapping[str, Any] = orjson.loads(file.read(size))
        content = np.memmap(path, np.uint8, "r", offset=8 + size) if len(header) else np.empty(0, np.uint8)
        for name, entry in header.items():
            stored = DTYPE_OF_CODE.get(entry.get("dtype", ""))
            if name == "__metadata__" or stored is None:
                continue
            wanted = expected[name][1] if name in expected else dtype if stored in FLOATS else stored
            begin, end = entry["data_offsets"]
            data = converted(content[begin:end], stored, wanted)
            if data is not None:
                shape = tuple(entry["shape"])
                yield TensorInfo(name, wanted, shape, hash_of(wanted, shape, data.data))


def converted(data: NDArray[np.uint8], stored: str, wanted: str) -> NDArray[np.uint8] | None:
    """The bytes of a tensor in another type, rounded to even as torch does; None where that is not known."""
    if stored == wanted:
        return data
    if stored not in FLOATS or wanted not in FLOATS:
        return None
    values = data.view(FLOATS[stored])
    single = (values.astype(np.uint32) << 16).view(np.float32) if stored == "bfloat16" else values.astype(np.float32)
    if wanted != "bfloat16":
        with np.errstate(over="ignore"):  # infinite, as torch has it
            return single.astype(FLOATS[wanted]).view(np.uint8)
    bits = single.view(np.uint32)
    even = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return even.astype(np.uint16).view(np.uint8)
