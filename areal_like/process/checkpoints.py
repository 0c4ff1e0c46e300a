"""The checkpoints of a run by their folders: how these are called, and which are complete.

Needs nothing but Python: a plan looks at them too.
"""

import os
import re
from pathlib import Path

COMPLETE, MANIFEST, RESUME = ".complete", "manifest.json", "resume"
"""In a checkpoint's folder: the mark of one that is whole, what it consists of, and what is needed to go on from it."""
FOLDER = re.compile(r"step_(\d{6,})")


def folder_name(step: int) -> str:
    return f"step_{step:06d}"


def step_of(name: str) -> int | None:
    """None for a folder that is no checkpoint."""
    found = FOLDER.fullmatch(name)
    return None if found is None else int(found[1])


def complete(root: Path) -> list[tuple[int, Path]]:
    """Steps and folders of the complete checkpoints in a run's folder of them, oldest first."""
    names = os.listdir(root) if root.is_dir() else []
    steps = sorted((step, name) for name in names if (step := step_of(name)) is not None)
    return [(step, root / name) for step, name in steps if (root / name / COMPLETE).exists()]
