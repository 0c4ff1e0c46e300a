"""Which checkpoint a run goes on from, and what becomes of those after it."""

import json
from pathlib import Path
from typing import Any

from areal_like.process.checkpoints import MANIFEST, RESUME, complete, folder_name, step_of


def step_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / folder_name(step)


def complete_steps(run_dir: Path) -> list[int]:
    """The steps of which the run has a complete checkpoint, oldest first."""
    return [step for step, _ in complete(run_dir / "checkpoints")]


def resumable_steps(run_dir: Path) -> list[int]:
    """Those of them that a run can go on from."""
    return [step for step in complete_steps(run_dir) if damage(step_folder(run_dir, step)) is None]


def newest_sound(run_dir: Path) -> tuple[int, Path] | None:
    """The newest checkpoint that is complete, undamaged, and has what is needed to resume."""
    for step in reversed(complete_steps(run_dir)):
        if damage(step_folder(run_dir, step)) is None:
            return step, step_folder(run_dir, step)
    return None


def damage(checkpoint: Path) -> str | None:
    """Why a complete checkpoint cannot be resumed from; None where it can. Sizes are looked at here, the hashes are
    the reader's to check."""
    if not (checkpoint / RESUME).is_dir():
        return f"{checkpoint.name} has weights alone, and nothing to resume from"
    try:
        parts = _parts(json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{checkpoint.name}/{MANIFEST} cannot be read ({type(error).__name__}: {error})"
    for name, size in parts.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{checkpoint.name}/{name} is missing"
        if file.stat().st_size != size:
            return f"{checkpoint.name}/{name} has {file.stat().st_size} bytes instead of {size}"
    return None


def _parts(manifest: dict[str, Any]) -> dict[str, int]:
    return {name: int(part["bytes"]) for name, part in manifest["parts"].items()}


def set_aside_after(run_dir: Path, step: int, attempt: int) -> list[str]:
    """Moves checkpoints of later steps out of the way: they belong to a life that the run does not go on from, and
    would be taken for its newest. Returns their names."""
    folder = run_dir / "checkpoints"
    aside = folder / f"before-attempt-{attempt}"
    moved = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = step_of(path.name)
        if found is not None and found > step:
            aside.mkdir(exist_ok=True)
            path.rename(aside / path.name)
            moved.append(path.name)
    return moved
