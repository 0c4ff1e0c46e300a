"""Links in a run directory to parts that `saver`, `recover`, `stats_logger` and `evaluator` put below another
`fileroot`: every part is found in the run directory."""

from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from areal_like.process.atomic_file import make_durable_folder

CHECKPOINTS, RESUME_STATES, TRACKERS, EVALUATIONS = "checkpoints", "resume", "trackers", "evaluations"
LINKS = MappingProxyType(
    {"saver": CHECKPOINTS, "recover": RESUME_STATES, "stats_logger": TRACKERS, "evaluator": EVALUATIONS}
)
"""Section whose `fileroot` may differ from the run's -> name of the link."""


def other_roots(config: Any, cwd: Path) -> dict[str, Path]:
    """Section -> absolute `fileroot`, for sections whose `fileroot` is not the run's."""
    own = _absolute(config.cluster.fileroot, cwd)
    roots = {section: _absolute(getattr(config, section).fileroot, cwd) for section in LINKS}
    return {section: root for section, root in roots.items() if root != own}


def link_target(directory: Path, name: str) -> Path | None:
    """Target of a run's link; None if it has none."""
    link = directory / name
    return link.resolve() if link.is_symlink() else None


def missing_link_targets(directory: Path) -> str:
    """Which links lead to a missing folder, and what to do; empty if none does."""
    targets = {name: link_target(directory, name) for name in LINKS.values()}
    broken = [f"{directory / name} leads to {to}" for name, to in targets.items() if to is not None and not to.is_dir()]
    are = "are" if len(broken) > 1 else "is"
    return f"{' and '.join(broken)}, which {are} missing; mount that disk" if broken else ""


def key_of_path(file: Path, config: Any, cwd: Path) -> str:
    """The key that sets where a file of a run is; `cluster.fileroot` if no other key does."""
    folders = {f"{section}.fileroot": root for section, root in other_roots(config, cwd).items()}
    names = config.cluster.name_resolve
    own = _absolute(config.cluster.fileroot, cwd)
    if names.type == "nfs" and not (record := _absolute(names.nfs_record_root, cwd)).is_relative_to(own):
        folders["cluster.name_resolve.nfs_record_root"] = record
    for key, root in folders.items():
        # the file may be a parent folder that had to be created first
        if file.is_relative_to(root) or (root.is_relative_to(file) and not own.is_relative_to(file)):
            return key
    return "cluster.fileroot"


def make_free_folder(folder: Path) -> Path:
    """Creates this folder, or if it exists the first free one with a number after its name."""
    for number in count(1):
        free = folder if number == 1 else folder.with_name(f"{folder.name}.{number}")
        try:
            make_durable_folder(free)
            return free
        except FileExistsError:
            continue
    raise AssertionError


def _absolute(root: str, cwd: Path) -> Path:
    return (cwd / Path(root).expanduser()).resolve()
