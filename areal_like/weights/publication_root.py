"""Chooses the folder for publications: shared memory if trainer and servers share it, else the run directory."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from areal_like.process.run import Run

VERSIONS_AT_ONCE = 3
"""One served, one being loaded, one being written."""


def publication_root(run: "Run", spans_nodes: bool, num_bytes: int, awaited: int = 0) -> tuple[Path, str]:
    """The folder for publications of `num_bytes` each, and the reason. `awaited`: the most versions that evaluations
    wait for."""
    if spans_nodes:
        return run.weights, "trainer and servers are on several nodes, which share the run directory"
    shared = run.memory.parent
    if not shared.is_dir():
        return run.weights, f"this machine has no {shared}"
    if not os.access(shared, os.W_OK):
        return run.weights, f"{shared} cannot be written to"
    versions = VERSIONS_AT_ONCE + awaited
    free, needed = shutil.disk_usage(shared).free, versions * num_bytes
    if not has_room(shared, needed):
        return run.weights, (
            f"{shared} has {_size(free)} free, and {versions} versions of the weights need {_size(needed)}"
        )
    return run.memory, f"trainer and servers share memory: {shared} has {_size(free)} free for {_size(needed)}"


def has_room(folder: Path, num_bytes: int) -> bool:
    return folder.is_dir() and shutil.disk_usage(folder).free >= num_bytes


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"
