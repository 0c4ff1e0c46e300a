"""Rows in files of JSON lines."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from areal_like.data.named import Places, problem

IN_FOLDER = {"train": ("train.jsonl",), "valid": ("valid.jsonl", "test.jsonl")}
"""The file of a folder that a dataset of an experiment means."""


def find_file(key: str, path: str, split: str, places: Places, tasks: Iterable[str]) -> Path:
    """The file that `path` names, or that stands for the split in the folder that it names."""
    looked = list(dict.fromkeys(place / Path(path).expanduser() for place in places))
    for found in looked:
        if found.is_file():
            return found.resolve()
        if found.is_dir():
            inside = next((found / name for name in IN_FOLDER[split] if (found / name).is_file()), None)
            if inside is None:
                raise problem(key, f"the folder {found} has no {' or '.join(IN_FOLDER[split])}; name the file itself")
            return inside.resolve()
    raise problem(
        key,
        f"{path} is no file of JSON lines (looked for {', '.join(map(str, looked))}), and no task that is built in "
        f"({', '.join(tasks)}); a task of your own belongs in task.name",
    )


def read_lines(key: str, file: Path) -> tuple[list[Any], list[int]]:
    """The rows, and the number of the line of each; empty lines are nothing."""
    rows, lines = [], []
    try:
        content = file.read_bytes()
    except OSError as fault:
        raise problem(key, f"{file} cannot be read: {fault.strerror}", fault) from fault
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError as fault:
            raise problem(key, f"{file}:{number} is not a row of JSON: {fault}", fault) from fault
        lines.append(number)
    return rows, lines
