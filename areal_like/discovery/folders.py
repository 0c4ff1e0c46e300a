"""The folders of the files of names: for one user alone, and gone when they are empty."""

import stat
from pathlib import Path

from areal_like.discovery.slot import user_of_new_files

MODE = 0o700


def make_folders(root: Path, folder: Path) -> None:
    """The folder, and what is missing above it up to the root."""
    below_root = folder.relative_to(root).parts
    for depth in range(len(below_root) + 1):
        try:
            root.joinpath(*below_root[:depth]).mkdir(MODE)
        except FileExistsError:
            continue


def shut_folders(root: Path, folder: Path) -> None:
    """Who else could write there could give wrong addresses, to which the run would then send its token.

    The root alone may be one that users share.
    """
    user = user_of_new_files(folder)
    while True:
        found = folder.stat()
        if found.st_uid != user:
            raise PermissionError(f"{folder} belongs to another user (number {found.st_uid})")
        if stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(MODE)
        folder = folder.parent
        if root not in folder.parents:
            return


def remove_empty_folders(root: Path, folder: Path) -> None:
    """Upwards, but for the root; the first that is not empty stays with all above it."""
    while folder != root:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.parent
