"""Finding runs: every start leaves a small file in the user's state directory, whatever folder its run is in.

RUN is a run's folder, `experiment/trial`, or a trial name. The first place that knows it answers: the working
directory, the `fileroot`, the runs that this user has started. What it knows two of is not guessed.
"""

import json
import os
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from areal_like.process.atomic_file import write_atomic
from areal_like.process.run import ATTEMPT, CONFIG
from launcher.runs.listing import runs_text


class RegisteredRun(NamedTuple):
    """A run that was started on this account."""

    experiment: str
    trial: str
    directory: Path
    started: float


def registry_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "areal-like" / "runs"


def register(experiment: str, trial: str, directory: Path) -> None:
    """One file per run directory, written anew by each start."""
    folder = registry_folder()
    folder.mkdir(parents=True, exist_ok=True)
    said = {"experiment": experiment, "trial": trial, "directory": str(directory), "started": time.time()}
    write_atomic(_file_of(directory), json.dumps(said) + "\n")


def unregister(directory: Path) -> None:
    """A run that came to nothing."""
    _file_of(directory).unlink(missing_ok=True)


def _file_of(directory: Path) -> Path:
    return registry_folder() / f"{blake2b(str(directory).encode(), digest_size=8).hexdigest()}.json"


def registered_runs() -> Iterator[RegisteredRun]:
    """Those whose directories still hold a run; the last started first."""
    folder = registry_folder()
    found = [_read(path) for path in folder.glob("*.json")] if folder.is_dir() else []
    for run in sorted((run for run in found if run is not None), key=lambda run: -run.started):
        if (run.directory / CONFIG).is_file():
            yield run


def _read(path: Path) -> RegisteredRun | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return RegisteredRun(said["experiment"], said["trial"], Path(said["directory"]), float(said["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it only helps to find runs; the run is none the worse


def look_up(run: str) -> list[Path]:
    """The directories of the known runs of this name: `experiment/trial`, or a trial."""
    return [one.directory for one in registered_runs() if run in (one.trial, f"{one.experiment}/{one.trial}")]


def find_runs(run: str, root: Path, cwd: Path, file: Path | None = None) -> list[Path]:
    """All that `run` means: one, none or, where it is ambiguous, several. `file` is the configuration at hand."""
    if not run.strip("/. "):
        return []
    if file is not None and file.name == CONFIG and (file.parent / "checkpoints").is_dir():
        own = file.parent.resolve()
        if run in (own.name, f"{own.parent.name}/{own.name}") or (cwd / run).resolve() == own:
            return [own]
    for path in (cwd / Path(run).expanduser(), root / run):
        if (path / CONFIG).is_file():
            return [Path(os.path.abspath(path))]
    below = sorted(os.listdir(root)) if root.is_dir() and "/" not in run else []
    found = [root / name / run for name in below if (root / name / run / CONFIG).is_file()]
    different = {path.resolve(): path for path in found or look_up(run)}
    return list(different.values())


def ambiguity_text(run: str, found: list[Path], root: Path) -> str:
    """Why `run` cannot be used, and what to say instead."""
    if found:
        return f"{run} is the name of {len(found)} runs; name one by its folder:\n{runs_text(found)}"
    ways = "give its folder, experiment/trial or a trial name that only one run has"
    return f"no run is called {run} under {root}, nor among those that this user has started; {ways}"


def last_attempt(run_dir: Path) -> int:
    """Of a run that was started before; 0 where none was."""
    path = run_dir / ATTEMPT
    return int(json.loads(path.read_text(encoding="utf-8"))["attempt"]) if path.is_file() else 0
