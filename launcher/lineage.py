"""Going back to a checkpoint: which one, and what of the life after it is moved out of the way."""

import shutil
from pathlib import Path
from typing import NamedTuple

from areal_like.process.run import Run
from areal_like.training.manifest import complaints
from launcher.checkpoints import complete_steps, damage, set_aside_after, step_folder
from launcher.run_files import write_attempt


class Back(NamedTuple):
    """Where an attempt begins, and what a user should know of it."""

    step: int
    checkpoint: Path | None
    remarks: tuple[str, ...]


def go_back(run: Run, attempt: int, at_most: int | None = None) -> Back:
    """Chooses the newest sound checkpoint (of `at_most` steps) and writes down that `attempt` begins there."""
    step, checkpoint, remarks = 0, None, []
    for candidate in reversed([step for step in complete_steps(run.directory) if at_most is None or step <= at_most]):
        folder = step_folder(run.directory, candidate)
        why = damage(folder) or "; ".join(complaints(folder))
        if not why:
            step, checkpoint = candidate, folder
            break
        remarks.append(f"not from step {candidate}: {why}")
    moved = set_aside_after(run.directory, step, attempt)
    if moved:
        remarks.append(f"moved to checkpoints/before-attempt-{attempt}: {', '.join(moved)}")
    for folder in (run.memory, run.weights):
        _empty(folder)
    write_attempt(run.directory, attempt, step, checkpoint)
    return Back(step, checkpoint, tuple(remarks))


def _empty(folder: Path) -> None:
    """Weights that were on their way: the servers hold what they took."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
