"""Run ids at a tracker's service, kept in the run directory so that a resumed run continues under its id."""

import json
import time
from typing import Any, NamedTuple

from areal_like.process import atomic_file
from areal_like.process.run import Run

FILE = "trackers.json"


class TrackerRunId(NamedTuple):
    """`is_known`: the service may have a run with this id, which is to be continued."""

    id: str
    is_known: bool


def tracker_run_id(run: Run, name: str, explicit: str | None, suffix: str | None) -> TrackerRunId:
    """The id of an earlier start of this run if the keys are the same, else a new one. Suffix `timestamp`: the time;
    `unique`: the run's id."""
    path = run.directory / FILE
    ids: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    keys, known = [explicit, suffix], ids.get(name)
    if known is not None and known["asked"] == keys:
        return TrackerRunId(known["id"], True)
    ending = {"timestamp": time.strftime("%Y%m%d-%H%M%S"), "unique": run.run_id}.get(suffix or "", suffix)
    parts = [run.config.experiment_name, run.config.trial_name, *([ending] if ending else [])]
    ids[name] = {"id": explicit or "_".join(parts), "asked": keys}
    atomic_file.write_atomic(path, json.dumps(ids, indent=1) + "\n")
    return TrackerRunId(ids[name]["id"], explicit is not None)
