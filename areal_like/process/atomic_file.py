"""Files that are there whole, or not at all, also after the machine lost its power; and how much of a file that grows
line by line is whole."""

import os
from pathlib import Path

CHUNK_BYTES = 1 << 16


def write_atomic(path: Path, content: str | bytes) -> None:
    """Under another name first, so that whoever reads, or kills this process, never leaves or finds half of it."""
    half = path.with_name(f".{path.name}.half")
    with half.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)


def fsync_tree(root: Path) -> None:
    """All that is below a folder, or where a link in it leads, is on the disk when this returns: the files, then the
    folders that name them."""
    for folder, _, files in os.walk(root, topdown=False, followlinks=True):
        for name in files:
            fsync_path(Path(folder, name))
        fsync_path(Path(folder))


def fsync_path(path: Path) -> None:
    """A file's content, or what a folder names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_with_backup(path: Path, content: str | None, kept: Path) -> None:
    """The new content, or no file for None; where that changes anything, the content of before is in `kept`, which is
    never written over: what a start that was cut short has kept already is the older one."""
    before = path.read_bytes() if path.is_file() else None
    if before is not None and (content is None or before != content.encode()) and not kept.exists():
        write_atomic(kept, before)
    if content is not None:
        write_atomic(path, content)
    elif before is not None:
        path.unlink()


def complete_lines_end(path: Path) -> int:
    """Bytes up to the end of the last complete line. The end of the file alone is read, however long it has grown."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - CHUNK_BYTES)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0
