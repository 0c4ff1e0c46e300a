"""Rows in Arrow tables: parquet files, and folders of `datasets.save_to_disk`. Read with pyarrow."""

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from areal_like.config.install_command import pip_command
from areal_like.data.readers.dataset_files import SAVED_DATASET, SAVED_DATASET_DICT
from areal_like.data.readers.row_cache import RowCache
from areal_like.data.tasks.base import Row, RowSequence
from areal_like.data.user_code import config_error

ROWS_AT_ONCE, CONVERTED_AT_ONCE = 1024, 1 << 14
MAX_PARQUET_BYTES = 1 << 26
"""More is not read into memory: it is converted once, to files that all processes of a run map."""
CONVERTED = "rows.arrow"
MAX_SAVED_BYTES = 1 << 26
"""A larger file of `save_to_disk` is mapped, and must not be cut off while it is used: that ends the process."""


class TableRows(RowSequence):
    """Rows are converted to dicts on access."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[Row]:
        for batch in self._table.to_batches(ROWS_AT_ONCE):
            yield from batch.to_pylist()

    def row(self, index: int) -> Row:
        row: Row = self._table.slice(range(len(self))[index], 1).to_pylist()[0]
        return row


def read_parquet(key: str, files: Sequence[Path], cache: RowCache) -> TableRows:
    """All files, concatenated."""
    arrow = import_package(key, "pyarrow", files[0])
    parquet = import_package(key, "pyarrow.parquet", files[0])
    tables = []
    least = 0 if sum(file.stat().st_size for file in files) > MAX_PARQUET_BYTES else sys.maxsize
    for file in files:
        try:
            folder = cache.entry([file], partial(_convert, arrow, parquet, file), least)
            if folder is None:
                tables.append(parquet.ParquetFile(file).read())
            else:
                tables.append(_mapped(arrow, folder / CONVERTED))
        except (OSError, ValueError) as fault:
            raise config_error(key, f"{file} cannot be read as parquet: {fault}", fault) from fault
    return TableRows(_concatenate(key, arrow, tables, files[0].parent))


def _convert(arrow: Any, parquet: Any, file: Path, folder: Path) -> None:
    source = parquet.ParquetFile(file, memory_map=True, pre_buffer=False)
    with arrow.ipc.new_stream(str(folder / CONVERTED), source.schema_arrow) as out:
        for batch in source.iter_batches(CONVERTED_AT_ONCE):
            out.write_batch(batch)
    arrow.default_memory_pool().release_unused()


def _mapped(arrow: Any, file: Path) -> Any:
    return arrow.ipc.open_stream(arrow.memory_map(str(file))).read_all()


def _stream(arrow: Any, file: Path) -> Any:
    if file.stat().st_size > MAX_SAVED_BYTES:
        return _mapped(arrow, file)
    return arrow.ipc.open_stream(file.read_bytes()).read_all()


def read_saved_dataset(key: str, folder: Path) -> TableRows:
    """A folder that `save_to_disk` wrote for one dataset; large files are memory-mapped."""
    arrow = import_package(key, "pyarrow", folder)
    try:
        names = [each["filename"] for each in json.loads((folder / SAVED_DATASET).read_bytes())["_data_files"]]
        tables = [_stream(arrow, folder / name) for name in names]
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise config_error(
            key, f"{folder} is not a complete folder of datasets.save_to_disk: {fault}", fault
        ) from fault
    return TableRows(_concatenate(key, arrow, tables, folder))


def saved_splits(key: str, folder: Path) -> list[str]:
    """The names of the splits in a folder of several."""
    try:
        splits: list[str] = list(json.loads((folder / SAVED_DATASET_DICT).read_bytes())["splits"])
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise config_error(key, f"{folder / SAVED_DATASET_DICT} cannot be read: {fault}", fault) from fault
    return splits


def import_package(key: str, name: str, what: Any) -> Any:
    """Imports an optional package; explains how to install it."""
    try:
        return import_module(name)
    except ImportError as fault:
        package = name.partition(".")[0]
        message = f"reading {what} needs the package {package}: {pip_command(package)}"
        raise config_error(key, message, fault) from fault


def _concatenate(key: str, arrow: Any, tables: Sequence[Any], where: Path) -> Any:
    try:
        return arrow.concat_tables(tables, promote_options="default")
    except ValueError as misfit:  # pyarrow's errors are subclasses
        raise config_error(key, f"the files of {where} have incompatible columns: {misfit}", misfit) from misfit
