"""Deletes checkpoints, so that one that is half gone never looks like one. `states`: the folder of the run's resume
states, if they are not in the checkpoints. A link is followed there alone: what another one leads to is not of the run.
"""

import shutil
from pathlib import Path
from typing import Any

from areal_like.process.atomic_file import fsync_path
from areal_like.process.checkpoint_files import CHECKPOINT_FOLDER, RESUME


def remove(folder: Path, states: Path | None) -> None:
    """Under another name first: a folder that is half gone must not look like a checkpoint."""
    aside = put_aside(folder, states)
    fsync_path(folder.parent)
    discard(aside, states)


def put_aside(folder: Path, states: Path | None) -> Path:
    """Where `discard` or the next start removes it."""
    aside = folder.with_name(f".{folder.name}.gone")
    discard(aside, states)
    folder.rename(aside)
    return aside


def discard(folder: Path, states: Path | None) -> None:
    """With what it has on another disk, which goes first: nothing would lead there any more."""
    for link in (folder, folder / RESUME):
        if link.is_symlink():
            target = link.resolve()
            if states is not None and target.parent == states.resolve() and target.is_dir():
                _remove_tree(target)
            link.unlink(missing_ok=True)
    if folder.is_dir():
        _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    """Also where a process that was stopped, or whose run was taken over, is at its last removals there."""

    def is_gone(_function: Any, _path: str, fault: Any) -> None:
        if not isinstance(fault[1], FileNotFoundError):
            raise fault[1]

    shutil.rmtree(folder, onerror=is_gone)


def remove_leftovers(root: Path, states: Path | None) -> None:
    """Removes what an earlier process left half written or half deleted."""
    for path in root.glob(".step_*.*"):
        if CHECKPOINT_FOLDER.fullmatch(path.name.split(".")[1]) and path.suffix in (".half", ".gone"):
            discard(path, states)
