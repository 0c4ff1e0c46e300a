"""Checks that a dataset has rows enough for one batch: JSON files and built-in tasks. Parquet and the Hub are checked
by the run."""

import json
import os
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from areal_like.config.built_in import TASK_SIZES, TASKS
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.data import paths_of
from areal_like.data.readers.dataset_files import (
    JSON,
    JSON_LINES,
    PARQUET,
    SAVED_DATASET,
    SAVED_DATASET_DICT,
    begins_list,
    empty_message,
    no_split_message,
    split_files,
    split_names,
    too_few_message,
)

if TYPE_CHECKING:
    from areal_like.config.sections.data import DatasetConfig

TRAIN_SECTION, SIZE_KEY = "train_dataset", "train_dataset.batch_size"
LARGEST_LIST_BYTES = 1 << 22
"""A JSON list has to be read whole to be counted."""
LARGEST_COMPARED_BYTES = 1 << 22
"""More takes longer than a user should wait at the start; `overlap` compares them."""
PARQUET_MARK = b"PAR1"
"""Begins and ends a file."""
LARGEST_UNCHECKED_BATCH = 1000
"""With arguments few tasks have fewer rows; for larger batches the rows are made, which takes time."""


class UnreadableRows(ValueError):
    """Why a file has no rows that can be read."""


def row_problems(section: str, data: "DatasetConfig", place: Path) -> Iterator[Problem]:
    """For an existing file or folder."""
    if place.is_dir():
        if (place / SAVED_DATASET_DICT).is_file() or (place / SAVED_DATASET).is_file():
            return
        split = "train" if section == TRAIN_SECTION else "valid"
        names = split_names(split, data.split)
        files = split_files(place, names)
        if not files:
            yield Problem(f"{section}.path", no_split_message(place, names))
            return
        place = files[0]
    is_whole = len(paths_of(data.path)) == 1
    most = data.batch_size if section == TRAIN_SECTION and data.drop_last and is_whole else 1
    file = place.resolve()
    try:
        if problem := _first_row_problem(section, data, file):
            yield problem
            return
        count = _count(file, most)
        if count is not None and count < most and (problem := _line_problem(section, file)):
            yield problem
            return
    except (OSError, UnreadableRows) as fault:
        why = fault if isinstance(fault, UnreadableRows) else f"cannot be read: {fault.strerror}"
        yield Problem(f"{section}.path", f"{file} {why}")
        return
    if count == 0:
        yield Problem(f"{section}.path", empty_message(str(file)))
    elif count is not None and count < most:
        yield Problem(SIZE_KEY, too_few_message(most, str(file), count))


def task_row_problems(
    name: str, args: dict[str, Any], data: "DatasetConfig", places: tuple[Path, Path]
) -> list[Problem]:
    """For the training rows of a built-in task."""
    if name not in TASKS or not data.drop_last:
        return []
    most = LARGEST_UNCHECKED_BATCH
    if data.batch_size <= (min(most, int(args.get("num_rows", most)) // 2) if args else TASK_SIZES[name].num_rows):
        return []
    from areal_like.data.tasks import TRAIN, make_task
    from areal_like.data.user_code import SearchFolders

    try:
        count = len(make_task(name, args, SearchFolders(*places)).rows(TRAIN))
    except ConfigError as refused:
        return [Problem(each.key, each.message) for each in refused.problems]
    source = f"the {TRAIN} split of task {name}"
    return [Problem(SIZE_KEY, too_few_message(data.batch_size, source, count))] if count < data.batch_size else []


def num_shared_lines(files: Sequence[Path], others: Sequence[Path]) -> tuple[int, int]:
    """How many rows of `others` are in `files` too, and how many there are; none where that is not cheap to find."""
    every = (*files, *others)
    is_cheap = all(file.suffix == JSON_LINES for file in every)
    if not is_cheap or sum(file.stat().st_size for file in every) > LARGEST_COMPARED_BYTES:
        return 0, 0
    known = {line for file in files for line in _lines(file)}
    lines = [line for file in others for line in _lines(file)]
    return sum(line in known for line in lines), len(lines)


def files_of(data: "DatasetConfig", place: Path, split: str) -> Sequence[Path]:
    """Of an existing file or folder."""
    if place.is_file():
        return [place]
    return split_files(place, split_names(split, data.split))


def _lines(file: Path) -> Iterator[bytes]:
    return filter(None, map(bytes.strip, file.read_bytes().split(b"\n")))


def first_row(section: str, data: "DatasetConfig", file: Path) -> dict[str, Any] | None:
    """Of JSON lines, as the run uses it; None of other files, or where it is not valid."""
    from areal_like.data.row_format import RowFormat

    with suppress(OSError, ValueError, TypeError):
        _, line = _first_line(file)
        return RowFormat(data, section)(json.loads(line)) if line else None
    return None


def _first_line(file: Path) -> tuple[int, bytes]:
    """Of JSON lines, with its number; empty of another file, or where it is huge."""
    if not _has_lines(file):
        return 0, b""
    with file.open("rb") as opened:
        number, line = next(((n, line) for n, line in enumerate(opened, 1) if line.strip()), (0, b""))
    return (number, line) if len(line) <= LARGEST_LIST_BYTES else (0, b"")


def _has_lines(file: Path) -> bool:
    """Of JSON: as every file is read that is nothing else, whatever its name."""
    if file.suffix == PARQUET:
        return False
    with file.open("rb") as opened:
        return file.suffix != JSON or not begins_list(opened.read(4096))


def _first_row_problem(section: str, data: "DatasetConfig", file: Path) -> Problem | None:
    """Of JSON lines: columns that are not those of the other rows either. The run checks all."""
    from areal_like.data.row_format import RowFormat

    number, line = _first_line(file)
    if not line:
        return None
    try:
        RowFormat(data, section)(json.loads(line))
    except (ValueError, TypeError) as fault:
        what = f"is not a line of JSON: {fault}" if isinstance(fault, json.JSONDecodeError) else str(fault)
        if line.removeprefix(BOM_UTF8).lstrip().startswith(b"["):
            what += "; a file with one JSON list of rows is named .json"
        return Problem(f"{section}.path", f"{file}:{number}: {what}")
    return None


def _line_problem(section: str, file: Path) -> Problem | None:
    """The first broken line of a file with few: that it has too few rows is then not what is wrong."""
    if not _has_lines(file) or file.stat().st_size > LARGEST_LIST_BYTES:
        return None
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            try:
                if line.strip():
                    json.loads(line)
            except ValueError as fault:
                return Problem(f"{section}.path", f"{file}:{number}: is not a line of JSON: {fault}")
    return None


def _count(file: Path, most: int) -> int | None:
    """The number of rows, counted up to `most`; None where that is not cheap. Raises UnreadableRows for a file that is
    damaged or was cut off."""
    with file.open("rb") as opened:
        if file.suffix == PARQUET:
            if opened.read(len(PARQUET_MARK)) != PARQUET_MARK or not _ends_with(opened, PARQUET_MARK):
                raise UnreadableRows("is no complete parquet file: its ends lack the mark PAR1; copy it again")
            return None
        is_list = file.suffix == JSON and begins_list(opened.read(4096))
        opened.seek(0)
        if not is_list:
            return sum(1 for _ in islice(filter(bytes.strip, opened), most))
        content = opened.read(LARGEST_LIST_BYTES + 1)
    if len(content) > LARGEST_LIST_BYTES:
        return None
    try:
        rows = json.loads(content)
    except ValueError as fault:
        raise UnreadableRows(f"is not a JSON list of rows: {fault}") from fault
    return len(rows) if isinstance(rows, list) else None


def _ends_with(opened: BinaryIO, mark: bytes) -> bool:
    size = opened.seek(0, os.SEEK_END)
    opened.seek(max(0, size - len(mark)))
    return opened.read() == mark
