"""A run that has ended with all its steps, and is asked to go on: nothing is started then."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.config.problems import plural
from areal_like.observe.summary import SUMMARY
from launcher.plan.plan import RunDirectory

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def nothing_left(config: "BaseExperimentConfig", directory: RunDirectory, total: int | None) -> str | None:
    """What `resume=` says of a finished run; None where a start has something to do. A run that was stopped after its
    last step may still have to evaluate it."""
    if config.resume is None or config.resume_step is not None or config.recover.skip_progress or not total:
        return None
    if directory.step is None or directory.step < total or not _is_finished(Path(directory.path), total):
        return None
    more = f"total_train_steps={2 * total} trains {total} more"
    kept = "nothing was started, and its configuration stays as it was"
    return f"{directory.path}: all {plural(total, 'step')} are done; {kept}. {more}"


def _is_finished(run: Path, total: int) -> bool:
    try:
        summary: Any = json.loads((run / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("outcome") == "done" and (summary.get("steps") or 0) >= total
