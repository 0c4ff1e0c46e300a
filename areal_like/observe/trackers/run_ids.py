"""The id of a run at a tracker's service. It is kept in the run directory: a run that is resumed goes on under it."""

import json
import time
from typing import Any, NamedTuple

from areal_like.process import atomic_file
from areal_like.process.run import Run

FILE = "trackers.json"


class TrackerRunId(NamedTuple):
    """`is_known` where the service may have a run of this id that is to be continued."""

    id: str
    is_known: bool


def tracker_run_id(run: Run, name: str, explicit: str | None, suffix: str | None) -> TrackerRunId:
    """That of an earlier start of this run, where the same keys asked for it; else one by these. The suffix `timestamp`
    stands for the time, `unique` for what no other run has."""
    path = run.directory / FILE
    ids: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    asked, known = [explicit, suffix], ids.get(name)
    if known is not None and known["asked"] == asked:
        return TrackerRunId(known["id"], True)
    ending = {"timestamp": time.strftime("%Y%m%d-%H%M%S"), "unique": run.run_id}.get(suffix or "", suffix)
    parts = [run.config.experiment_name, run.config.trial_name, *([ending] if ending else [])]
    ids[name] = {"id": explicit or "_".join(parts), "asked": asked}
    atomic_file.write_atomic(path, json.dumps(ids, indent=1) + "\n")
    return TrackerRunId(ids[name]["id"], explicit is not None)
