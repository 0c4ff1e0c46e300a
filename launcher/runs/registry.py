"""Finding runs: every start leaves a small file in the user's state directory, whatever folder its run is in.

RUN is a run's folder, `experiment/trial`, or a trial name. The first place that knows it answers: the working
directory, the `fileroot`, the runs that this user has started. What it knows two of is not guessed.
"""

import getpass
import json
import os
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.process.atomic_file import write_atomic
from areal_like.process.run import ATTEMPT, CONFIG, RUN_FACTS

if TYPE_CHECKING:
    from areal_like.discovery.slot import Claim

SUMMARY = "summary.json"
MAX_LISTED = 12


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


def runs_text(directories: Sequence[Path]) -> str:
    """A line each, the last started first; some, where there are many."""
    newest = sorted(directories, key=lambda path: -_started(path))
    lines = [f"  {path}  ({run_state(path)}, started {_date(_started(path))})" for path in newest[:MAX_LISTED]]
    if len(newest) > MAX_LISTED:
        lines.append(f"  ... and {len(newest) - MAX_LISTED} more")
    return "\n".join(lines)


def run_state(directory: Path) -> str:
    """How the last start of a run has ended; a run without a summary is running or was killed."""
    said = _json(directory / SUMMARY)
    if "outcome" in said:
        return f"{said['outcome']}, {said.get('steps', 0)} steps"
    return "running" if is_running(directory) else "never ended in order"


def is_running(directory: Path) -> bool:
    return lock_holder(directory) is not None


def lock_holder(directory: Path) -> "Claim | None":
    """The process that holds the name of the run's launcher, where it runs as far as can be seen from here."""
    import yaml

    from areal_like.discovery.owner import is_alive, this_process
    from areal_like.discovery.slot import CLAIM, file_part, read_claim

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        values = yaml.load((directory / CONFIG).read_text(encoding="utf-8"), loader)
        names = Path(values["cluster"]["name_resolve"]["nfs_record_root"]).expanduser()
        run = [getpass.getuser(), str(values["experiment_name"]), str(values["trial_name"])]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None  # nothing is known of it, and this only describes it
    root = Path(_json(directory / RUN_FACTS).get("cwd", ".")) / names
    claim = read_claim(root.joinpath(*map(file_part, run), "launcher", f"0{CLAIM}"))
    if claim is None or claim.owner is None:
        return None
    return claim if not claim.owner.is_local(this_process()) or is_alive(claim.owner) else None


def _started(directory: Path) -> float:
    """Every start writes the run's facts anew."""
    for name in (RUN_FACTS, CONFIG):
        if (directory / name).is_file():
            return os.stat(directory / name).st_mtime
    return 0.0


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _json(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
