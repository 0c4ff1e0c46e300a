"""`rows/` in the run directory: what is computed from data files once, for all processes of the run."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

from areal_like.process import file_lock

END_BYTES = 1 << 20


class RowCache:
    """`root` is None where there is no run: then nothing is kept."""

    def __init__(self, root: Path | None) -> None:
        self._root = root

    def entry(self, files: Sequence[Path], make: Callable[[Path], None], least: int) -> Path | None:
        """The folder of what was computed from these files, as they are now; None for less than `least` bytes. `make`
        writes it; other processes wait for it."""
        facts = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns, stat.st_ino) for file in files]
        if self._root is None or sum(size for _, size, _, _ in facts) < least:
            return None
        self._root.mkdir(parents=True, exist_ok=True)
        folder = self._root / xxhash.xxh3_64_hexdigest(json.dumps(facts).encode())
        with (self._root / "lock").open("w") as file:
            file_lock.lock(file, "another process of the run that reads the same data files")
            if not folder.is_dir():
                for left in self._root.glob(".*.half"):  # of processes that were killed
                    shutil.rmtree(left)
                half = self._root / f".{folder.name}.half"
                half.mkdir()
                make(half)
                half.replace(folder)
        return folder


def content_of_ends(files: Sequence[Path]) -> str:
    """A hash of sizes, beginnings and ends: where the table of contents of a parquet file is."""
    content = xxhash.xxh3_64()
    for file in files:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            content.update(f"{size} ".encode())
            for start in (0, max(0, size - END_BYTES)):
                opened.seek(start)
                content.update(opened.read(END_BYTES))
    return content.hexdigest()
