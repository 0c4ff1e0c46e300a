"""Rolls a run back to a checkpoint: chooses it, moves later checkpoints aside, removes weights in transit."""

import shutil
from pathlib import Path
from typing import NamedTuple

from areal_like.process.checkpoint_files import attempt_of, resume_problem, step_of
from areal_like.process.run import ATTEMPT, Run, StartPoint
from areal_like.process.run_memory import is_private
from areal_like.process.shared_segments import RECORD
from launcher.runs.checkpoints import complete_steps, move_aside_after, step_folder
from launcher.runs.run_files import write_start_point


class Rollback(NamedTuple):
    """Where an attempt begins, and messages about it for the user."""

    step: int
    checkpoint: Path | None
    messages: tuple[str, ...]


def roll_back(run: Run, attempt: int, began: int, at_most: int | None = None) -> Rollback:
    """Chooses the newest undamaged checkpoint (of up to `at_most` steps) and records that `attempt` begins there.
    `began` is the first attempt of the same command."""
    checkpoint, messages = None, []
    for candidate in _candidates(run, at_most):
        if (why := resume_problem(candidate, with_hashes=True)) is None:
            checkpoint = candidate
            break
        messages.append(f"the checkpoint of step {step_of(candidate.name)} is skipped: {why}")
    step = 0 if checkpoint is None else step_of(checkpoint.name) or 0
    if checkpoint is not None and run.config.recover.skip_progress and attempt_of(checkpoint) < began:
        step = 0
        messages.append(f"recover.skip_progress: the steps before {checkpoint.name} do not count")
    moved = move_aside_after(run.directory, step, attempt)
    if moved:
        messages.append(f"moved to checkpoints/before-attempt-{attempt}: {', '.join(path.name for path in moved)}")
    if checkpoint is not None and not checkpoint.is_dir():
        (checkpoint,) = [path for path in moved if path.name == checkpoint.name]
    if is_private(run.memory):
        _empty(run.memory)
    _empty(run.weights)
    write_start_point(run.directory, StartPoint(attempt, step, checkpoint, began, is_checked=checkpoint is not None))
    return Rollback(step, checkpoint, tuple(messages))


def _candidates(run: Run, at_most: int | None) -> list[Path]:
    """Newest first, then the checkpoint that the attempt before started from: it lies outside the run directory where
    its steps did not count."""
    steps = [step for step in complete_steps(run.directory) if at_most is None or step <= at_most]
    found = [step_folder(run.directory, step) for step in reversed(steps)]
    if at_most is None and (run.directory / ATTEMPT).is_file():
        earlier = run.start_point().checkpoint
        if earlier is not None and earlier.is_dir() and earlier not in found:
            found.append(earlier)
    return found


def _empty(folder: Path) -> None:
    """Removes weights that were in transit. Records of the engines' shared memory stay."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith(RECORD):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
