"""GGUF reader: metadata and dequantized tensors. transformers' own reader needs the package gguf, which is not a
dependency."""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAGIC, VERSION = b"GGUF", 3
TEXT, LIST = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value type -> format character of `struct`."""


class BlockFormat(NamedTuple):
    """Quantization blocks: `numbers` values in `size` bytes."""

    numbers: int
    size: int


BLOCK_FORMATS = {0: BlockFormat(1, 4), 3: BlockFormat(32, 20), 8: BlockFormat(32, 34)}
"""float32, Q4_1 and Q8_0."""


class _TensorEntry(NamedTuple):
    shape: tuple[int, ...]
    kind: int
    start: int


class GGUF:
    """`metadata` describes the model. Tensors are read on access."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        magic, version = self._take("4sI")
        if magic != MAGIC or version != VERSION:
            raise ValueError(f"{path} is not a GGUF file of version {VERSION}")
        num_tensors, num_values = self._take("QQ")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            name = self._text()
            self.metadata[name] = self._value(*self._take("I"))
        places = {}
        for _ in range(num_tensors):
            name = self._text()
            (num_dimensions,) = self._take("I")
            shape = self._take(f"{num_dimensions}Q")[::-1]  # the fastest-changing dimension comes first
            kind, start = self._take("IQ")
            if kind not in BLOCK_FORMATS:
                raise ValueError(f"{path}: {name} has type {kind}, which is not supported")
            places[name] = _TensorEntry(shape, kind, start)
        alignment = int(self.metadata.get("general.alignment", 32))
        self._data = -(-self._at // alignment) * alignment
        self._places = places

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for name in self._places:
            yield name, self.tensor(name)

    def tensor(self, name: str) -> NDArray[np.float32]:
        place = self._places[name]
        numbers, size = BLOCK_FORMATS[place.kind]
        count = int(np.prod(place.shape)) // numbers
        raw = np.frombuffer(self._bytes, np.uint8, count * size, self._data + place.start).reshape(count, size)
        return {0: _float32, 3: _q4_1, 8: _q8_0}[place.kind](raw).reshape(place.shape)

    def _take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self._bytes, self._at)
        self._at += struct.calcsize(f"<{form}")
        return values

    def _text(self) -> str:
        (length,) = self._take("Q")
        self._at += length
        return self._bytes[self._at - length : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == LIST:
            inner, count = self._take("IQ")
            if inner in NUMBERS:
                return list(self._take(f"{count}{NUMBERS[inner]}"))
            return [self._value(inner) for _ in range(count)]
        return self._take(NUMBERS[kind])[0]


def _float32(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    return raw.view("<f4").astype(np.float32)


def _q4_1(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A scale, an offset, and 32 values of 4 bits: the low nibbles are the first 16."""
    scale, offset = (raw[:, at : at + 2].view("<f2").astype(np.float32) for at in (0, 2))
    nibbles = np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1)
    return scale * nibbles.astype(np.float32) + offset


def _q8_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A scale, and 32 values of 8 bits."""
    return raw[:, :2].view("<f2").astype(np.float32) * raw[:, 2:].view(np.int8).astype(np.float32)
