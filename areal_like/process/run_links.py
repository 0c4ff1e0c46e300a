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


def link_target(directory: Path, name: str) -> Path | None:
    """Where the link of a run leads; None where it has none."""
    link = directory / name
    return link.resolve() if link.is_symlink() else None


def missing_link_targets(directory: Path) -> str:
    """Which parts of a run are on a disk that is not there, and what to do; empty where all are there."""
    found = {name: link_target(directory, name) for name in LINKS.values()}
    lost = [f"{directory / name} leads to {to}" for name, to in found.items() if to is not None and not to.is_dir()]
    what = "which are" if len(lost) > 1 else "which is"
    return f"{' and '.join(lost)}, {what} not there; bring that disk back" if lost else ""


def key_of_path(file: Path, config: Any, cwd: Path) -> str:
    """The key that says where a file of a run is; that of the run's own root where no other does."""
    folders = {f"{section}.fileroot": root for section, root in other_roots(config, cwd).items()}
    names = config.cluster.name_resolve
    own = _absolute(config.cluster.fileroot, cwd)
    if names.type == "nfs" and not (record := _absolute(names.nfs_record_root, cwd)).is_relative_to(own):
        folders["cluster.name_resolve.nfs_record_root"] = record
    for key, root in folders.items():
        # a folder above is one that had to be made on the way
        if file.is_relative_to(root) or (root.is_relative_to(file) and not own.is_relative_to(file)):
            return key
    return "cluster.fileroot"


def make_free_folder(folder: Path) -> Path:
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
