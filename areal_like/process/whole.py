"""Files that are there whole, or not at all; and how much of a file that grows line by line is whole."""

import os
from pathlib import Path

PIECE = 1 << 16


def write(path: Path, content: str | bytes) -> None:
    """Under another name first, so that whoever reads, or kills this process, never leaves or finds half of it."""
    half = path.with_name(f".{path.name}.half")
    with half.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)


def whole_lines(path: Path) -> int:
    """Bytes up to the end of the last complete line. The end of the file alone is read, however long it has grown."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - PIECE)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0
