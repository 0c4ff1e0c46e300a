"""Finding runs: every start leaves a small file in the user's state directory, whatever folder its run is in."""

import json
import os
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from areal_like.process.run import CONFIG
from areal_like.process.whole import write


class Known(NamedTuple):
    """A run that was started on this account."""

    experiment: str
    trial: str
    directory: Path
    started: float


def state_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "areal-like" / "runs"


def remember(experiment: str, trial: str, directory: Path) -> None:
    """One file per run directory, written anew by each start."""
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    said = {"experiment": experiment, "trial": trial, "directory": str(directory), "started": time.time()}
    write(folder / f"{blake2b(str(directory).encode(), digest_size=8).hexdigest()}.json", json.dumps(said) + "\n")


def known_runs() -> Iterator[Known]:
    """Those whose directories still hold a run; the last started first."""
    folder = state_folder()
    found = [_read(path) for path in folder.glob("*.json")] if folder.is_dir() else []
    for run in sorted((run for run in found if run is not None), key=lambda run: -run.started):
        if (run.directory / CONFIG).is_file():
            yield run


def _read(path: Path) -> Known | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Known(said["experiment"], said["trial"], Path(said["directory"]), float(said["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it only helps to find runs; the run is none the worse


def look_up(run: str) -> list[Path]:
    """The directories of the known runs of this name: `experiment/trial`, or a trial."""
    return [one.directory for one in known_runs() if run in (one.trial, f"{one.experiment}/{one.trial}")]
