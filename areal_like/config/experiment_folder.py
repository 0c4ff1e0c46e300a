"""The folder of an experiment's file: beside it, a user's code, data and groups are searched."""

import json
from pathlib import Path
from typing import Any

RUN_CONFIG, FACTS = "config.yaml", "run.json"
"""In a run directory: the configuration of the run, and what else its processes need to know."""


def experiment_folder(file: Path) -> Path:
    """A run's own configuration counts as the file that the run was started with, unless its folder is gone: the user's
    code is not copied into the run directory."""
    beside = file.resolve().parent
    started_in = _recorded_folder(beside / FACTS) if file.name == RUN_CONFIG else None
    return started_in if started_in is not None and started_in.is_dir() else beside


def _recorded_folder(facts_file: Path) -> Path | None:
    try:
        facts: Any = json.loads(facts_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    folder = facts.get("folder") if isinstance(facts, dict) else None
    return Path(folder) if isinstance(folder, str) else None
