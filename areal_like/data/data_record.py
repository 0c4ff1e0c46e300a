"""`data.json` in the run directory: origin, number, digest and revision of the rows. `rows/` is beside it."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal_like.process import atomic_file, file_lock
from areal_like.process.temporary_folders import ROWS, temporary_folder

RECORD, ROW_CACHE = "data.json", "rows"
"""The second is the folder of what is computed from data files once."""


@contextlib.contextmanager
def temporary_record() -> Iterator[Path]:
    """For a command that reads rows without a run: what it computes from data files is removed at its end."""
    with temporary_folder(ROWS) as folder:
        yield folder / RECORD


@contextlib.contextmanager
def open_section(record: Path | None, section: str) -> Iterator[dict[str, Any]]:
    """The entry of the dataset at the key `section`, locked against other processes of the run; changes are written
    back."""
    if record is None:
        yield {}
        return
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.with_suffix(".lock").open("w") as file:
        file_lock.lock(file, f"another process of the run that reads {section}")
        content = read_record(record)
        before = json.dumps(content)
        yield content.setdefault(section, {})
        if json.dumps(content) != before:
            atomic_file.write_atomic(record, json.dumps(content, indent=1) + "\n")


def read_record(record: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(record.read_bytes()) if record.is_file() else {}
    return content


def has_messages(directory: Path) -> bool:
    """Whether the run in this directory trains on messages."""
    return bool(read_record(directory / RECORD).get("train_dataset", {}).get("has_messages"))
