"""A run that has ended with all its steps, and is asked to go on: nothing is started then."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.config.dotted_path import value_at
from areal_like.config.problems import plural
from areal_like.observe.summary import SUMMARY
from launcher.plan.plan import RunDirectory
from launcher.runs.resumable import run_config_values

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

EPOCHS, STEPS = "total_train_epochs", "total_train_steps"
ROWS = ("train_dataset", "task", "environments", "curriculum")
"""Sections that decide how many steps an epoch has."""


def nothing_left(loaded: "Loaded", directory: RunDirectory, total: int | None) -> str | None:
    """What a command says that continues a finished run; None where a start has something to do. A run that was stopped
    after its last step may still have to evaluate it."""
    config, step = loaded.config, directory.step
    if directory.state != "continues" or config.resume_step is not None or config.recover.skip_progress or not step:
        return None
    if _steps_when_done(Path(directory.path)) != step:
        return None
    if total and step >= total:
        done, more = f"all {plural(total, 'step')}", f"{STEPS}={2 * total} trains {total} more"
    elif total != 0 and (epochs := _epochs_had(loaded, Path(directory.path), step)):
        done = f"all {plural(epochs, 'epoch')} ({plural(step, 'step')})"
        more = f"{EPOCHS}={2 * epochs} trains {min(2 * step, total or 2 * step) - step} more"
    else:
        return None
    kept = "nothing was started, and its configuration stays as it was"
    anew = "" if config.resume is not None else "; --replace starts over"
    return f"{directory.path}: {done} are done; {kept}. {more}{anew}"


def _steps_when_done(run: Path) -> int | None:
    """None for a run that has not ended by itself."""
    try:
        summary: Any = json.loads((run / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary.get("steps") if isinstance(summary, dict) and summary.get("outcome") == "done" else None


def _epochs_had(loaded: "Loaded", run: Path, step: int) -> int | None:
    """Of a run that its rows have ended; None of another one, or where it would have more of them now."""
    before = run_config_values(run)
    other_end = value_at(before, "total_train_n_seqs") or (value_at(before, STEPS) or step + 1) <= step
    had = value_at(before, EPOCHS)
    if loaded.config.total_train_n_seqs or other_end or not isinstance(had, int):
        return None
    is_same = all(value_at(before, section) == loaded.get(section) for section in ROWS)
    return had if is_same and loaded.config.total_train_epochs <= had else None
