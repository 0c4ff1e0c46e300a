"""How a command tells a program that started it where its run is and how it ended."""

import json
import os
from pathlib import Path

from areal_like.process.atomic_file import write_atomic

RESULT = "AREAL_LIKE_RESULT"
"""The environment variable with the file into which it is written."""
PLANNED = "planned"
"""The outcome of a dry run."""


def write_result(run_dir: str | Path, outcome: str, exit_code: int, message: str = "") -> None:
    place = os.environ.get(RESULT)
    if place:
        said = {"directory": str(run_dir), "outcome": outcome, "exit_code": exit_code, "message": message}
        write_atomic(Path(place), json.dumps(said) + "\n")
