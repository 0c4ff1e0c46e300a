"""Reading a checkpoint of a run that may be running: its retention removes the older ones at any moment."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from areal_like.config.problems import ConfigError, Problem
from areal_like.process.checkpoint_files import COMPLETE, checkpoint_problems
from launcher.runs.checkpoints import complete_steps, step_folder
from launcher.runs.resumable import why_not_resumable

T = TypeVar("T")


class _CheckpointMark(NamedTuple):
    """Tells a checkpoint from another one of the same step; it is made last, and removed with the folder."""

    inode: int
    made: int


def read_checkpoint(run_dir: Path, asked: str | None, read: Callable[[Path], T], say: Callable[[str], None]) -> T:
    """What `read` makes of the checkpoint of step `asked`, or of the newest one; where that is removed meanwhile, of
    the one that is the newest then. What `read` returns must not need the folder any more."""
    while True:
        step = _step(run_dir, asked)
        folder = step_folder(run_dir, step)
        mark = _mark(folder)
        try:
            if mark is not None:
                _refuse_damaged(folder)
                result = read(folder)
                if _mark(folder) in (mark, None):  # removed by now is no harm, replaced may be half of either
                    return result
        except Exception:
            if _mark(folder) == mark:
                raise
        if asked is None:
            say(f"the checkpoint of step {step} was removed by its run while it was read; taking the newest")


def _step(run_dir: Path, asked: str | None) -> int:
    """The one asked for, else the newest."""
    steps = complete_steps(run_dir)
    if not steps:
        raise ConfigError([Problem(str(run_dir), f"has no model to read: {why_not_resumable(run_dir)}")])
    if asked is None:
        return steps[-1]
    if not asked.isdigit() or int(asked) not in steps:
        there = ", ".join(map(str, steps[-10:]))
        raise ConfigError(
            [Problem("step", f"{run_dir} has no checkpoint of step {asked} (any more); it has those of {there}")]
        )
    return int(asked)


def _mark(folder: Path) -> _CheckpointMark | None:
    try:
        found = os.stat(folder / COMPLETE)
    except FileNotFoundError:
        return None
    return _CheckpointMark(found.st_ino, found.st_mtime_ns)


def _refuse_damaged(folder: Path) -> None:
    wrong = [text for text in checkpoint_problems(folder, with_hashes=False) if "/resume/" not in text]
    if wrong:
        raise ConfigError([Problem(str(folder), f"{'; '.join(wrong)}; choose another with step=N")])
