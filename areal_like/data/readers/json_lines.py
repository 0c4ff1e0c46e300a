"""Rows in JSON lines files: their places are found once, and rows are read on access."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from areal_like.data.exact_json import dump_json, parse_json
from areal_like.data.readers.dataset_files import begins_list
from areal_like.data.readers.line_index import content_of, line_index
from areal_like.data.readers.row_cache import RowCache
from areal_like.data.tasks.base import Row, RowSequence
from areal_like.data.user_code import config_error
from areal_like.process.errors import FinalFailure

MAX_LIST_BYTES = 1 << 26
"""A larger list is not kept in memory: it is converted once, to lines."""
CONVERTED = "rows.jsonl"


class JsonLineRows(RowSequence):
    """A file that changes during a run is an error."""

    def __init__(self, key: str, file: Path, cache: RowCache) -> None:
        self._file, self._key = file, key
        try:
            self._descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            self._index = line_index(file, self._descriptor, cache)
        except OSError as fault:
            raise config_error(key, f"{file} cannot be read: {fault.strerror}", fault) from fault
        self._state = self._state_now()

    @property
    def content(self) -> str:
        """The hash of the file."""
        return self._index.content

    def place(self, index: int) -> str:
        """File and line of a row, for messages."""
        return f"{self._file}:{self._index.numbers[index]}"

    def __len__(self) -> int:
        return len(self._index.offsets)

    def __iter__(self) -> Iterator[Row]:
        return (self.row(index) for index in range(len(self)))

    def row(self, index: int) -> Row:
        start, end = int(self._index.offsets[index]), int(self._index.ends[index])
        line = os.pread(self._descriptor, end - start, start)
        self._check_unchanged()
        try:
            row: Row = parse_json(line)
        except ValueError as fault:
            raise config_error(self._key, f"{self.place(index)} is not a JSON row: {fault}", fault) from fault
        return row

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def _state_now(self) -> tuple[int, int]:
        stat = os.fstat(self._descriptor)
        return stat.st_size, stat.st_mtime_ns

    def _check_unchanged(self) -> None:
        """The whole file is read again only if its size or time has changed."""
        state = self._state_now()
        if state != self._state:
            if content_of(self._descriptor) != self._index.content:
                raise FinalFailure(
                    f"{self._key}: {self._file} changed while the run reads it; start again, and leave it unchanged"
                )
            self._state = state


def read_list(key: str, file: Path, cache: RowCache) -> Sequence[Any] | None:
    """The rows of a file with one JSON list; None for other files."""
    with file.open("rb") as opened:
        if not begins_list(opened.read(4096)):
            return None
    folder = cache.entry([file], lambda folder: _write_lines(_parsed_list(key, file), folder), MAX_LIST_BYTES)
    return _parsed_list(key, file) if folder is None else JsonLineRows(key, folder / CONVERTED, cache)


def _parsed_list(key: str, file: Path) -> list[Any]:
    try:
        rows: list[Any] = parse_json(file.read_bytes())
    except ValueError as fault:
        raise config_error(key, f"{file} is not a JSON list of rows: {fault}", fault) from fault
    return rows


def _write_lines(rows: Sequence[Any], folder: Path) -> None:
    with (folder / CONVERTED).open("wb") as out:
        out.writelines(dump_json(row) + b"\n" for row in rows)
