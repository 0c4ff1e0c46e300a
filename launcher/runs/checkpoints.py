"""The checkpoints of a run directory: which are complete, resumable, or to be moved aside."""

from pathlib import Path

from areal_like.process.checkpoint_files import complete_checkpoints, folder_name, resume_problem, step_of


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


def move_aside_after(run_dir: Path, step: int, attempt: int) -> list[Path]:
    """Moves checkpoints of later steps into `before-attempt-K`: the run is rolled back behind them. Returns their new
    paths."""
    folder = run_dir / "checkpoints"
    aside = folder / f"before-attempt-{attempt}"
    moved = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        path_step = step_of(path.name)
        if path_step is not None and path_step > step:
            aside.mkdir(exist_ok=True)
            moved.append(path.rename(aside / path.name))
    return moved
