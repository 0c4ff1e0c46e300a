"""Registry of runs: each start writes a small file into the user's state directory, so that runs are found by name.

RUN is a run's folder, `experiment/trial`, or a trial name. Searched in this order: the working directory, `fileroot`,
the runs that this user has started. An ambiguous name is an error.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.process.atomic_file import write_atomic
from areal_like.process.run import CONFIG, RUN_FACTS
from launcher.runs.resumable import run_config_values

if TYPE_CHECKING:
    from areal_like.discovery.base import Holder

SUMMARY = "summary.json"
LAUNCHER = "launcher/0"
"""The name that a run's launcher holds."""
OWNER = "owner"
"""Folder in the run directory in which it holds that name as well."""
MAX_LISTED = 12


class RegisteredRun(NamedTuple):
    """A run that this user has started."""

    experiment: str
    trial: str
    directory: Path
    started: float


def registry_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "areal-like" / "runs"


def register(experiment: str, trial: str, directory: Path) -> None:
    """One file per run directory, rewritten by each start."""
    folder = registry_folder()
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"experiment": experiment, "trial": trial, "directory": str(directory), "started": time.time()}
    write_atomic(_file_of(directory), json.dumps(entry) + "\n")


def unregister(directory: Path) -> None:
    """For a run whose directory is removed."""
    _file_of(directory).unlink(missing_ok=True)


def _file_of(directory: Path) -> Path:
    return registry_folder() / f"{blake2b(str(directory).encode(), digest_size=8).hexdigest()}.json"


def registered_runs() -> Iterator[RegisteredRun]:
    """The runs whose directories still exist, the last started first."""
    folder = registry_folder()
    runs = [_read(path) for path in folder.glob("*.json")] if folder.is_dir() else []
    for run in sorted((run for run in runs if run is not None), key=lambda run: -run.started):
        if (run.directory / CONFIG).is_file():
            yield run


def _read(path: Path) -> RegisteredRun | None:
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        return RegisteredRun(entry["experiment"], entry["trial"], Path(entry["directory"]), float(entry["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the run itself is not affected


def look_up(run: str) -> list[Path]:
    """The directories of the registered runs of this name: `experiment/trial`, or a trial."""
    return [each.directory for each in registered_runs() if run in (each.trial, f"{each.experiment}/{each.trial}")]


def find_runs(run: str, root: Path, cwd: Path, file: Path | None = None) -> list[Path]:
    """All directories that `run` may mean. `file` is the configuration file of the command, if any."""
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
    matches = [root / name / run for name in below if (root / name / run / CONFIG).is_file()]
    return list({path.resolve(): path for path in matches or look_up(run)}.values())


def ambiguity_text(run: str, matches: list[Path], root: Path) -> str:
    """The error for a name that no run has, or more than one."""
    if matches:
        return f"{run} is the name of {len(matches)} runs; name one by its folder:\n{runs_text(matches)}"
    remedy = "give its folder, experiment/trial or a trial name that only one run has"
    return f"no run is called {run} under {root}, nor among the runs that this user has started; {remedy}"


def runs_text(directories: Sequence[Path]) -> str:
    """A line per run, the last started first, up to `MAX_LISTED`."""
    newest = sorted(directories, key=lambda path: -_started(path))
    lines = [f"  {path}  ({run_state(path)}, started {_date(_started(path))})" for path in newest[:MAX_LISTED]]
    if len(newest) > MAX_LISTED:
        lines.append(f"  ... and {len(newest) - MAX_LISTED} more")
    return "\n".join(lines)


def run_state(directory: Path) -> str:
    """How the last start of a run ended; a run without a summary is running or was killed."""
    summary = _json(directory / SUMMARY)
    if "outcome" in summary:
        return f"{summary['outcome']}, {summary.get('steps', 0)} steps"
    return "running" if is_running(directory) else "did not end normally"


def is_running(directory: Path) -> bool:
    return lock_holder(directory) is not None


def lock_holder(directory: Path) -> "Holder | None":
    """The launcher that runs in this directory; None where none does, as far as this machine can tell."""
    from areal_like.discovery import user_name
    from areal_like.discovery.holders import holder_in_files, read_holder

    if (claimed := holder_in_files(directory, OWNER, LAUNCHER)) is not None:
        return claimed
    values = run_config_values(directory)
    try:
        names = values["cluster"]["name_resolve"]
        prefix = f"{user_name()}/{values['experiment_name']}/{values['trial_name']}"
        return read_holder(names, Path(_json(directory / RUN_FACTS).get("cwd", ".")), prefix, LAUNCHER)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # the file may have been edited


def running_text(directory: Path, holder: "Holder", now: datetime | None = None) -> str:
    """x/y is already running (pid 22314 on host vm, since 13:33)"""
    since = _local_time(holder.since, now or datetime.now())
    host = "unknown" if holder.owner is None else holder.owner.host
    return f"{'/'.join(directory.parts[-2:])} is already running ({holder.process} on host {host}, since {since})"


def _local_time(since: str, now: datetime) -> str:
    """The time of a claim in the time zone of this process, with its day unless that is today."""
    from areal_like.discovery.base import SINCE_FORMAT

    try:
        began = datetime.strptime(since, SINCE_FORMAT).astimezone()
    except ValueError:
        return since
    return began.strftime("%H:%M" if began.date() == now.date() else "%Y-%m-%d %H:%M")


def _started(directory: Path) -> float:
    """Every start rewrites the run's facts."""
    for name in (RUN_FACTS, CONFIG):
        if (directory / name).is_file():
            return os.stat(directory / name).st_mtime
    return 0.0


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
