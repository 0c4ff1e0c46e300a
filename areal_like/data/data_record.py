"""`data.json` of a run's directory: where its rows came from, how many they were, and of which revision."""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal_like.process import atomic_file

RECORD = "data.json"


@contextlib.contextmanager
def open_section(record: Path | None, section: str) -> Iterator[dict[str, Any]]:
    """What is written down of the dataset at the key `section`, while no other process of the run looks; what is
    changed is written again."""
    if record is None:
        yield {}
        return
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        everything = read_record(record)
        before = json.dumps(everything)
        yield everything.setdefault(section, {})
        if json.dumps(everything) != before:
            atomic_file.write_atomic(record, json.dumps(everything, indent=1) + "\n")


def read_record(record: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.read_bytes()) if record.is_file() else {}
    return found


def has_messages(directory: Path) -> bool:
    """Whether the run in this directory trains on messages."""
    return bool(read_record(directory / RECORD).get("train_dataset", {}).get("has_messages"))
