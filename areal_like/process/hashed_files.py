"""Writes files and hashes them on the way, so that none has to be read again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from areal_like.process import pulse

BLOCK_BYTES = 1 << 22
SYNC_BYTES = 1 << 27
"""Written between two syncs: one of a whole file on a slow disk would look like a hang."""


class FilePart(NamedTuple):
    """A file in the manifest of a checkpoint."""

    bytes: int
    hash: str


class HashingStream:
    """A file that is written from beginning to end."""

    def __init__(self, file: BinaryIO) -> None:
        import xxhash

        self._file, self._digest, self._bytes, self._unsynced = file, xxhash.xxh3_64(), 0, 0

    def write(self, data: Any) -> int:
        """In blocks: each is still in the processor's cache when it is hashed."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), BLOCK_BYTES):
            block = view[start : start + BLOCK_BYTES]
            self._digest.update(block)
            self._file.write(block)
            self._unsynced += len(block)
            if self._unsynced >= SYNC_BYTES:
                self._sync()
        self._file.flush()
        self._bytes += len(view)
        return len(view)

    def _sync(self) -> None:
        self._file.flush()
        os.fdatasync(self._file.fileno())
        self._unsynced = 0
        pulse.advance()

    def tell(self) -> int:
        return self._bytes

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    @property
    def part(self) -> FilePart:
        return FilePart(self._bytes, self._digest.hexdigest())


class HashedFiles:
    """Remembers sizes and hashes of the files that it writes."""

    def __init__(self) -> None:
        self._parts: dict[Path, FilePart] = {}

    @contextmanager
    def open(self, path: Path) -> Iterator[HashingStream]:
        with path.open("wb") as file:
            stream = HashingStream(file)
            yield stream
        self._parts[path] = stream.part

    def write(self, path: Path, content: bytes) -> None:
        with self.open(path) as stream:
            stream.write(content)

    def copy(self, source: Path, target: Path) -> None:
        with source.open("rb") as file, self.open(target) as stream:
            while block := file.read(BLOCK_BYTES):
                stream.write(block)

    def below(self, folder: Path) -> dict[str, FilePart]:
        """By their names relative to the folder."""
        return {os.fspath(path.relative_to(folder)): part for path, part in self._parts.items()}
