"""Result file of a command, for the program that started it: the run's directory, outcome and exit code."""

import json
import os
from pathlib import Path

from areal_like.process.atomic_file import write_atomic

RESULT = "AREAL_LIKE_RESULT"
"""Environment variable with the path of the result file."""
PLANNED = "planned"
"""The outcome of a dry run."""
FINISHED = "done"
"""That of a run with all its steps, also where nothing was left to do."""


def write_result(run_dir: str | Path, outcome: str, exit_code: int, message: str = "") -> None:
    path = os.environ.get(RESULT)
    if path:
        result = {"directory": str(run_dir), "outcome": outcome, "exit_code": exit_code, "message": message}
        write_atomic(Path(path), json.dumps(result) + "\n")
