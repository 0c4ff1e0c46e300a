"""Atomic and durable file writes, durable folders; the complete lines of a file that others append to."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from areal_like.process import pulse

CHUNK_BYTES = 1 << 16
HALF = ".half"
"""How the names of temporary files end."""


def write_atomic(path: Path, content: str | bytes, require: Callable[[], None] = lambda: None) -> None:
    """Writes a temporary file, syncs it and renames it: readers never see half of the content. `require` is called
    before the rename, which a disk may delay for long. The file's name is this call's own: a process that was stalled
    in it would otherwise write into what its successor has renamed meanwhile."""
    half = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{HALF}")
    try:
        with half.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        require()
        half.replace(path)
    except BaseException:
        half.unlink(missing_ok=True)
        raise


def remove_half_files(folder: Path) -> None:
    """What processes that were killed have left of `write_atomic`."""
    for left in folder.glob(f".*{HALF}"):
        if left.is_file() and not left.is_symlink():
            with suppress(OSError):
                left.unlink()


def make_durable_folder(folder: Path) -> None:
    """Creates a folder and the missing ones above it; raises FileExistsError where it exists. The entry of each is
    synced: what is synced in a folder would be lost with its entry."""
    try:
        folder.mkdir()
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        with suppress(FileExistsError):  # another process was faster
            make_durable_folder(folder.parent)
        folder.mkdir()
    fsync_path(folder.parent)


def fsync_tree(root: Path) -> None:
    """Syncs all files below a folder, then the folders; follows links."""
    for folder, _, files in os.walk(root, topdown=False, followlinks=True):
        for name in files:
            fsync_path(Path(folder, name))
            pulse.advance()
        fsync_path(Path(folder))


def fsync_path(path: Path) -> None:
    """Syncs a file's content, or a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_appended(path: Path) -> None:
    """Syncs a file to which lines were appended, with the entries of it and of its folder, which may be new."""
    if path.is_file():
        for each in (path, path.parent, path.parent.parent):
            fsync_path(each)


def replace_with_backup(path: Path, content: str | None, kept: Path) -> None:
    """Writes the content, or removes the file for None. If that changes anything, the old content goes to `kept`,
    unless that exists: then an interrupted start has saved an older one."""
    before = path.read_bytes() if path.is_file() else None
    if before is not None and (content is None or before != content.encode()) and not kept.exists():
        write_atomic(kept, before)
    if content is not None:
        write_atomic(path, content)
    elif before is not None:
        path.unlink()


def complete_lines_end(path: Path) -> int:
    """Offset after the last complete line. Reads only the end of the file."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - CHUNK_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0
