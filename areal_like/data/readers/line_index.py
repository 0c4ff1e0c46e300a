"""Where the rows of a JSON lines file begin and end: found once per run, and mapped into memory by all processes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from areal_like.data.readers.row_cache import RowCache

BLOCK = 1 << 22
MIN_BYTES = 1 << 20
"""Smaller files are scanned in less time than the cache takes."""
SPACE, NEWLINE = ord(" "), ord("\n")


class LineIndex(NamedTuple):
    """Of the lines that are not empty. `content` is the hash of the whole file."""

    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]
    numbers: NDArray[np.int64]
    """Of the lines in the file, from 1."""
    content: str


def line_index(file: Path, descriptor: int, cache: RowCache) -> LineIndex:
    """From the cache, if the file has not changed since."""
    folder = cache.entry([file], lambda folder: _save(scan(descriptor), folder), MIN_BYTES)
    if folder is None:
        return scan(descriptor)
    offsets, ends, numbers = np.asarray(np.load(folder / "lines.npy", mmap_mode="r"))
    return LineIndex(offsets, ends, numbers, (folder / "content").read_text())


def scan(descriptor: int) -> LineIndex:
    content = xxhash.xxh3_64()
    starts, breaks, blank = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    size, at_start = 0, True
    for data in _blocks(descriptor):
        content.update(data)
        block = np.frombuffer(data, np.uint8)
        found = np.flatnonzero(block == NEWLINE)
        inside = found[found + 1 < len(block)] + 1
        first = np.concatenate([np.zeros(int(at_start), np.int64), inside])
        blank.append(first[block[first] <= SPACE] + size)
        starts.append(found + (size + 1))
        breaks.append(found + size)
        at_start = bool(len(found)) and int(found[-1]) == len(block) - 1
        size += len(block)
    offsets, ends = np.concatenate(starts), np.concatenate([*breaks, np.array([size], np.int64)])
    is_row = ends > offsets
    for start in np.concatenate(blank).tolist():  # a line that begins with a space is rarely a row
        line = int(np.searchsorted(offsets, start))
        is_row[line] = bool(os.pread(descriptor, int(ends[line]) - start, start).strip())
    numbers = np.flatnonzero(is_row)
    return LineIndex(offsets[numbers], ends[numbers], numbers + 1, content.hexdigest())


def content_of(descriptor: int) -> str:
    content = xxhash.xxh3_64()
    for data in _blocks(descriptor):
        content.update(data)
    return content.hexdigest()


def _blocks(descriptor: int) -> Iterator[bytes]:
    offset = 0
    while data := os.pread(descriptor, BLOCK, offset):
        offset += len(data)
        yield data


def _save(index: LineIndex, folder: Path) -> None:
    np.save(folder / "lines.npy", np.stack([index.offsets, index.ends, index.numbers]))
    (folder / "content").write_text(index.content)
