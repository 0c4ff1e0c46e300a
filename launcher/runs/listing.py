"""A run in a line: where it is, how it stands, when it was started."""

import getpass
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.process.run import CONFIG, RUN_FACTS

if TYPE_CHECKING:
    from areal_like.discovery.slot import Claim

SUMMARY = "summary.json"
MAX_LISTED = 12


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
