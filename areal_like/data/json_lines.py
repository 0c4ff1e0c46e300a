"""Rows in JSON lines files: scanned once, and read again on access."""

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import xxhash

from areal_like.data.tasks.base import Row, RowSequence
from areal_like.data.user_code import config_error
from areal_like.process.errors import Failure

BLOCK = 1 << 22


class JsonLineRows(RowSequence):
    """Stores offset and hash of each row: a file that changes during a run is an error."""

    def __init__(self, key: str, file: Path) -> None:
        self._file, self._key = file, key
        self._offsets, self._lengths, self._lines = array("q"), array("q"), array("q")
        self._hashes = array("Q")
        try:
            self._descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as fault:
            raise config_error(key, f"{file} cannot be read: {fault.strerror}", fault) from fault
        for number, offset, line in self._contents():
            self._offsets.append(offset)
            self._lengths.append(len(line))
            self._lines.append(number)
            self._hashes.append(xxhash.xxh3_64_intdigest(line))

    def place(self, index: int) -> str:
        """File and line of a row, for messages."""
        return f"{self._file}:{self._lines[index]}"

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Row]:
        for index, (number, _, line) in enumerate(self._contents()):
            if index >= len(self) or xxhash.xxh3_64_intdigest(line) != self._hashes[index]:
                raise self._changed()
            yield self._parsed(number, line)

    def row(self, index: int) -> Row:
        line = os.pread(self._descriptor, self._lengths[index], self._offsets[index])
        if xxhash.xxh3_64_intdigest(line) != self._hashes[index]:
            raise self._changed()
        row: Row = self._parsed(self._lines[index], line)
        return row

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def _contents(self) -> Iterator[tuple[int, int, bytes]]:
        """Number, offset and content of each line that is not empty."""
        number, offset, begun = 0, 0, b""
        while block := os.pread(self._descriptor, BLOCK, offset + len(begun)):
            *lines, begun = (begun + block).split(b"\n")
            for line in lines:
                number += 1
                if line.strip():
                    yield number, offset, line
                offset += len(line) + 1
        if begun.strip():
            yield number + 1, offset, begun

    def _parsed(self, number: int, line: bytes) -> Any:
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError as fault:
            raise config_error(self._key, f"{self._file}:{number} is not a JSON row: {fault}", fault) from fault

    def _changed(self) -> Failure:
        return Failure(f"{self._key}: {self._file} changed while the run reads it; start again, and leave it unchanged")


def read_list(key: str, file: Path) -> list[Any] | None:
    """The rows of a file with one JSON list; None for other files."""
    with file.open("rb") as opened:
        if not opened.read(4096).lstrip().startswith(b"["):
            return None
    try:
        rows = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as fault:
        raise config_error(key, f"{file} is not a JSON list of rows: {fault}", fault) from fault
    return rows if isinstance(rows, list) else None
