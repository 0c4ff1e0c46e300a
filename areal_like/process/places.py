"""Parts of a run that `saver`, `recover`, `stats_logger` and `evaluator` put below a folder of their own: each is a
link in the run directory, so that whoever reads a run finds them there."""

from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

CHECKPOINTS, RESUME_STATES, TRACKERS, EVALUATIONS = "checkpoints", "resume", "trackers", "evaluations"
LINKS = MappingProxyType(
    {"saver": CHECKPOINTS, "recover": RESUME_STATES, "stats_logger": TRACKERS, "evaluator": EVALUATIONS}
)
"""Section whose `fileroot` may be another than the run's -> name of the link."""


def other_roots(config: Any, cwd: Path) -> dict[str, Path]:
    """Of the sections whose `fileroot` is not that of the run, the absolute one."""
    own = _absolute(config.cluster.fileroot, cwd)
    roots = {section: _absolute(getattr(config, section).fileroot, cwd) for section in LINKS}
    return {section: root for section, root in roots.items() if root != own}


def linked(directory: Path, name: str) -> Path | None:
    """Where the link of a run leads; None where it has none."""
    link = directory / name
    return link.resolve() if link.is_symlink() else None


def make_free(folder: Path) -> Path:
    """Makes this folder, or the first with a number behind its name that is free."""
    for number in count(1):
        free = folder if number == 1 else folder.with_name(f"{folder.name}.{number}")
        try:
            free.mkdir(parents=True)
            return free
        except FileExistsError:
            continue
    raise AssertionError("there are numbers enough")


def _absolute(root: str, cwd: Path) -> Path:
    return (cwd / Path(root).expanduser()).resolve()
