"""A run's folder in shared memory. Any user can create files in /dev/shm, so the folder must belong to this user and be
closed to others, whatever its name.

Processes that create or write it hold a shared lock on it, which the kernel releases with the last of them: see
`abandoned_memory`.
"""

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from areal_like.process.errors import Failure

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "areal-like."
OTHERS_BITS = 0o077
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

_held: dict[Path, int] = {}


def memory_folder(run_id: str) -> Path:
    return SHARED_MEMORY / f"{PREFIX}{os.getuid()}.{run_id}"


def create_run_memory(folder: Path) -> None:
    """Creates the folder, before any process of the run starts. Does nothing without writable shared memory: weights
    are then passed through the run's directory."""
    if not folder.parent.is_dir() or not os.access(folder.parent, os.W_OK):
        return
    is_held = False
    while not is_held:
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise Failure(f"{folder}: exists already, made by {_maker(folder)}; start again") from None
        check_private(folder)
        is_held = lock_folder(folder)


def ensure_run_memory(folder: Path) -> None:
    """Creates the folder if it is missing, for a process that was not started by the launcher, such as a trainer under
    torchrun."""
    is_held = False
    while not is_held:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(folder)
        is_held = lock_folder(folder)


def lock_folder(folder: Path) -> bool:
    """Locks it until this process and its forks have ended. False if another start has removed the folder before it was
    locked, which is done under the exclusive lock."""
    before = _held.get(folder)
    if before is not None and is_same_file(before, folder):
        return True
    unlock_folder(folder)
    try:
        handle = os.open(folder, OPEN_FOLDER)
    except FileNotFoundError:
        return False
    fcntl.flock(handle, fcntl.LOCK_SH)
    if not is_same_file(handle, folder):
        os.close(handle)
        return False
    _held[folder] = handle
    return True


def unlock_folder(folder: Path) -> None:
    handle = _held.pop(folder, None)
    if handle is not None:
        os.close(handle)


@contextlib.contextmanager
def hold_if_free(folder: Path, owner: int) -> Iterator[bool]:
    """Whether the folder is that user's and unlocked; it stays locked inside the `with`."""
    try:
        handle = os.open(folder, OPEN_FOLDER)
    except OSError:  # no folder, or not readable
        yield False
        return
    try:
        if os.fstat(handle).st_uid != owner:
            yield False
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield is_same_file(handle, folder)
    finally:
        os.close(handle)


def is_same_file(handle: int, path: Path) -> bool:
    """Whether the path still leads to this open file."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def check_private(folder: Path) -> None:
    """Raises Failure if the folder belongs to another user, or others can read or write it."""
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode):
        raise Failure(f"{folder}: is not a folder; weights are not passed through it")
    if state.st_uid != os.getuid():
        raise Failure(f"{folder}: belongs to {_maker(folder)}; weights are not passed through it")
    if state.st_mode & OTHERS_BITS:
        mode = stat.filemode(state.st_mode)
        raise Failure(f"{folder}: is open to other users ({mode}); weights are not passed through it")


def is_private(folder: Path) -> bool:
    """Whether the folder exists, belongs to this user and is closed to others."""
    try:
        check_private(folder)
    except (FileNotFoundError, Failure):
        return False
    return True


def check_run_memory_of(path: Path) -> None:
    """The same for the run's folder in shared memory that contains `path`, if any."""
    folder = _run_folder(path)
    if folder is not None:
        check_private(folder)


def make_folder_in_memory(path: Path) -> None:
    """Creates a folder, and the run's folder that contains it, which stays locked until this process ends."""
    folder = _run_folder(path)
    if folder is not None:
        ensure_run_memory(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _run_folder(path: Path) -> Path | None:
    if not path.is_relative_to(SHARED_MEMORY) or path == SHARED_MEMORY:
        return None
    name = path.relative_to(SHARED_MEMORY).parts[0]
    return SHARED_MEMORY / name if name.startswith(PREFIX) else None


def remove_folder(folder: Path) -> None:
    """Removes the folder if it belongs to this user: files in shared memory outlive their processes."""
    if folder.is_dir() and not folder.is_symlink() and folder.lstat().st_uid == os.getuid():
        shutil.rmtree(folder)
    unlock_folder(folder)


def _maker(folder: Path) -> str:
    return f"user {folder.lstat().st_uid}"
