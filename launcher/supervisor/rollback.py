"""Rolls a run back to a checkpoint: writes the start point, moves later checkpoints aside, removes weights in
transit."""

import shutil
from functools import partial
from pathlib import Path
from typing import NamedTuple

from areal_like.process.checkpoint_files import attempt_of, step_of
from areal_like.process.exit_codes import FAILED
from areal_like.process.run import Run, StartPoint
from areal_like.process.run_memory import is_private
from areal_like.process.shared_segments import RECORD
from launcher.runs.checkpoints import aside_folder, move_aside_after
from launcher.runs.run_files import write_start_point
from launcher.supervisor.checkpoint_search import CheckpointSearch, FoundCheckpoint
from launcher.supervisor.lifecycle import RunEnding, WaitLimits
from launcher.supervisor.taken_over import require_not_begun, require_own, taken_over_ending

RESUME_ONLY = "resume"
"""The `recover.mode` that requires a checkpoint."""


class Rollback(NamedTuple):
    """Where an attempt begins, and messages about it for the user."""

    step: int
    checkpoint: Path | None
    messages: tuple[str, ...]


class PendingRollback(NamedTuple):
    """A rollback whose checkpoint is still searched. `reason`: what ended the attempt before."""

    search: CheckpointSearch
    reason: str

    def ending(self, run: Run, attempt: int, limits: WaitLimits, mode: str) -> RunEnding | None:
        """How the run ends where `attempt` cannot begin; `mode` is recover.mode. The directory may be on a disk that
        does not answer: it is read only once the search has ended."""
        is_done = self.search.is_done()
        if is_done and (lost := taken_over_ending(run, attempt - 1)) is not None:
            return lost
        failure = self._failure_text(limits, mode, is_done)
        return None if failure is None else RunEnding("failed", FAILED, failure)

    def _failure_text(self, limits: WaitLimits, mode: str, is_done: bool) -> str | None:
        if not is_done:
            return self.search.late_text(limits.setup_s, limits.setup_key)
        found = self.search.result()
        if found.unread_text is not None:
            return found.unread_text
        if mode != RESUME_ONLY or found.checkpoint is not None or not found.skipped:
            return None
        return f"recover.mode: resume needs an undamaged checkpoint; {found.skipped[0]}"

    def result_lines(self, back: Rollback, attempt: int, evaluates: bool) -> list[str]:
        """What is printed of it when the attempt begins."""
        what = "starts from the beginning, as there is no checkpoint yet"
        if evaluates:
            what = "goes on with the answers so far"
        elif back.checkpoint is not None:
            what = f"resumes from step {step_of(back.checkpoint.name)}"
        return [f"{self.reason}; attempt {attempt} {what}", *(f"  {message}" for message in back.messages)]


def roll_back(run: Run, attempt: int, began: int, found: FoundCheckpoint) -> Rollback:
    """Records that `attempt` begins at the checkpoint that was found. `began` is the first attempt of the same
    command."""
    checkpoint, messages = found.checkpoint, list(found.skipped)
    step = 0 if checkpoint is None else step_of(checkpoint.name) or 0
    if checkpoint is not None and run.config.recover.skip_progress and attempt_of(checkpoint) < began:
        step = 0
        messages.append(f"recover.skip_progress: the steps before {checkpoint.name} do not count")
    begins_at = _place_after(run, step, attempt, checkpoint)
    start = StartPoint(attempt, step, begins_at, began, is_checked=checkpoint is not None, owner=run.run_id)
    # First: once the checkpoint is not found where it was, a start after a crash reads here where it is.
    write_start_point(run.directory, start, partial(require_not_begun, run, attempt))
    require = partial(require_own, run, attempt)
    if moved := move_aside_after(run.directory, step, attempt, checkpoint, require):
        messages.append(f"moved to checkpoints/before-attempt-{attempt}: {', '.join(path.name for path in moved)}")
    if is_private(run.memory):
        _empty(run.memory)
    require()
    _empty(run.weights)
    return Rollback(step, begins_at, tuple(messages))


def _place_after(run: Run, step: int, attempt: int, checkpoint: Path | None) -> Path | None:
    """Where the checkpoint is once those after `step` are moved aside. It may have been moved before."""
    if checkpoint is None or checkpoint.parent != run.checkpoints or (step_of(checkpoint.name) or 0) <= step:
        return checkpoint
    return aside_folder(run.directory, attempt) / checkpoint.name


def _empty(folder: Path) -> None:
    """Removes weights that were in transit. Records of the engines' shared memory stay, also those that are being
    written: the servers go on meanwhile."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.lstrip(".").startswith(RECORD):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)  # a version that is left is replaced by the next of its number
        else:
            path.unlink(missing_ok=True)
