"""The checkpoints of a run by their folders: how these are called, what is where in them, and which are complete.

Needs nothing but Python: a plan looks at them too.
"""

import json
import os
import re
from pathlib import Path

COMPLETE, KEPT, MANIFEST, RESUME = ".complete", ".kept", "manifest.json", "resume"
"""In a checkpoint's folder: the mark of one that is whole, that of one that the saver keeps, what it consists of, and
what is needed to go on from it."""
TRAINER = "trainer.json"
"""In `resume`: what the trainer needs to go on that is no tensor."""
CHECKPOINT_FOLDER = re.compile(r"step_(\d{6,})")


def folder_name(step: int) -> str:
    return f"step_{step:06d}"


def step_of(name: str) -> int | None:
    """None for a folder that is no checkpoint."""
    found = CHECKPOINT_FOLDER.fullmatch(name)
    return None if found is None else int(found[1])


def complete_checkpoints(root: Path) -> list[tuple[int, Path]]:
    """Steps and folders of the complete checkpoints in a run's folder of them, oldest first."""
    names = os.listdir(root) if root.is_dir() else []
    steps = sorted((step, name) for name in names if (step := step_of(name)) is not None)
    return [(step, root / name) for step, name in steps if (root / name / COMPLETE).exists()]


def attempt_of(checkpoint: Path) -> int:
    """Which attempt of its run has written it; 0 where that is not known."""
    path = checkpoint / RESUME / TRAINER
    return int(json.loads(path.read_text(encoding="utf-8")).get("attempt", 0)) if path.is_file() else 0
