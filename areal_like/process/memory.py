"""The folder of a run in shared memory. Everybody on the machine can make files in /dev/shm, so a folder with the right
name proves nothing: it must be ours, and closed to others."""

import os
import shutil
import stat
from pathlib import Path

from areal_like.process.errors import Failure

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "areal-like."
OTHERS = 0o077


def memory_folder(run_id: str) -> Path:
    return SHARED_MEMORY / f"{PREFIX}{os.getuid()}.{run_id}"


def make_new(folder: Path) -> None:
    """Before anything of a run is started. Nothing is made where there is no shared memory, or none to write to: then
    weights travel through the run's directory."""
    if not folder.parent.is_dir() or not os.access(folder.parent, os.W_OK):
        return
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise Failure(f"{folder}: is there already, made by {_maker(folder)}; start again") from None
    check_private(folder)


def make_private(folder: Path) -> None:
    """For a process that nobody has made the folder for, as where trainers are started by hand."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raises Failure for a folder that others made, or can write to or read."""
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode):
        raise Failure(f"{folder}: is no folder; weights are not passed through it")
    if state.st_uid != os.getuid():
        raise Failure(f"{folder}: belongs to {_maker(folder)}; weights are not passed through it")
    if state.st_mode & OTHERS:
        mode = stat.filemode(state.st_mode)
        raise Failure(f"{folder}: is open to other users ({mode}); weights are not passed through it")


def check_above(path: Path) -> None:
    """The same for the run's folder that a path lies in, where it lies in one."""
    if path.is_relative_to(SHARED_MEMORY):
        name = path.relative_to(SHARED_MEMORY).parts[0]
        if name.startswith(PREFIX):
            check_private(SHARED_MEMORY / name)


def remove_memory(folder: Path) -> None:
    """What a run has in shared memory outlives processes, so somebody must. What is not ours stays."""
    if folder.is_dir() and not folder.is_symlink() and folder.lstat().st_uid == os.getuid():
        shutil.rmtree(folder)


def _maker(folder: Path) -> str:
    return f"user {folder.lstat().st_uid}"
