"""Reads a checkpoint of a run that may still be running and removing old checkpoints."""

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
    """Distinguishes a checkpoint from a later one of the same step: inode and time of the file that is written last."""

    inode: int
    made: int


def read_checkpoint(run_dir: Path, wanted_step: str | None, read: Callable[[Path], T], say: Callable[[str], None]) -> T:
    """Calls `read` with the checkpoint of step `wanted_step`, or with the newest one, and again with the newest one
    where it is removed meanwhile. The result must not depend on the folder."""
    while True:
        step = _step(run_dir, wanted_step)
        folder = step_folder(run_dir, step)
        mark = _mark(folder)
        try:
            if mark is not None:
                _refuse_damaged(folder)
                result = read(folder)
                if _mark(folder) in (mark, None):  # a replaced checkpoint may have been read half and half
                    return result
        except Exception:
            if _mark(folder) == mark:
                raise
        if wanted_step is None:
            say(f"the checkpoint of step {step} was removed by its run while it was read; reading the newest")


def _step(run_dir: Path, wanted_step: str | None) -> int:
    """The wanted step, else the newest."""
    steps = complete_steps(run_dir)
    if not steps:
        raise ConfigError([Problem(str(run_dir), f"has no model to read: {why_not_resumable(run_dir)}")])
    if wanted_step is None:
        return steps[-1]
    if not wanted_step.isdigit() or int(wanted_step) not in steps:
        available = ", ".join(map(str, steps[-10:]))
        raise ConfigError(
            [Problem("step", f"{run_dir} has no checkpoint of step {wanted_step}; it has those of {available}")]
        )
    return int(wanted_step)


def _mark(folder: Path) -> _CheckpointMark | None:
    try:
        status = os.stat(folder / COMPLETE)
    except FileNotFoundError:
        return None
    return _CheckpointMark(status.st_ino, status.st_mtime_ns)


def _refuse_damaged(folder: Path) -> None:
    wrong = [text for text in checkpoint_problems(folder, with_hashes=False) if "/resume/" not in text]
    if wrong:
        raise ConfigError([Problem(str(folder), f"{'; '.join(wrong)}; choose another with step=N")])
