"""The checkpoints of a run directory: which are complete, resumable, or to be moved aside."""

from collections.abc import Callable
from pathlib import Path

from areal_like.process.atomic_file import fsync_path
from areal_like.process.checkpoint_files import complete_checkpoints, folder_name, resume_problem, step_of
from areal_like.process.run import start_checkpoint


def step_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / folder_name(step)


def complete_steps(run_dir: Path) -> list[int]:
    """The steps of which the run has a complete checkpoint, oldest first."""
    return [step for step, _ in complete_checkpoints(run_dir / "checkpoints")]


def resumable_steps(run_dir: Path) -> list[int]:
    """The steps whose checkpoints can be resumed."""
    return [step for step in complete_steps(run_dir) if resume_problem(step_folder(run_dir, step)) is None]


def newest_resumable(run_dir: Path) -> tuple[int, Path] | None:
    """The newest checkpoint that is complete, undamaged, and holds the state needed to resume."""
    for step in reversed(complete_steps(run_dir)):
        if resume_problem(step_folder(run_dir, step)) is None:
            return step, step_folder(run_dir, step)
    return None


def resumable_aside(run_dir: Path) -> Path | None:
    """The checkpoint from which the last attempt began, where it was moved aside as its steps do not count."""
    checkpoint = start_checkpoint(run_dir)
    if checkpoint is None or checkpoint.parent.parent != run_dir / "checkpoints":
        return None
    return checkpoint if resume_problem(checkpoint) is None else None


def aside_folder(run_dir: Path, attempt: int) -> Path:
    """Where checkpoints are that lay after the step from which this attempt began."""
    return run_dir / "checkpoints" / f"before-attempt-{attempt}"


def move_aside_after(
    run_dir: Path, step: int, attempt: int, start: Path | None = None, require: Callable[[], None] = lambda: None
) -> list[Path]:
    """Moves checkpoints of later steps into `before-attempt-K`: the run is rolled back behind them. `start`, from which
    the attempt begins, is moved last: until then a search after a crash finds it where it was. `require` raises where
    the run has another launcher now. Returns their new paths."""
    folder, aside = run_dir / "checkpoints", aside_folder(run_dir, attempt)
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    later = [path for path in paths if (path_step := step_of(path.name)) is not None and path_step > step]
    moved = []
    for path in sorted(later, key=lambda path: path == start):
        require()
        aside.mkdir(exist_ok=True)
        moved.append(path.rename(aside / path.name))
        for changed in (aside, folder):  # before the next one is moved
            fsync_path(changed)
    return sorted(moved)
