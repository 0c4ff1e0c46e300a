"""Finds the rows of a dataset by its path: a file, a folder, or a name on the Hub."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.sections.data import paths_of, revisions_of
from areal_like.data.data_record import ROW_CACHE
from areal_like.data.readers.arrow_tables import read_parquet, read_saved_dataset, saved_splits
from areal_like.data.readers.dataset_files import (
    JSON,
    PARQUET,
    SAVED_DATASET,
    SAVED_DATASET_DICT,
    no_split_message,
    split_files,
    split_names,
)
from areal_like.data.readers.hub import read_hub, snapshot
from areal_like.data.readers.hub_cache import is_hub_name
from areal_like.data.readers.json_lines import JsonLineRows, read_list
from areal_like.data.readers.row_cache import RowCache, content_of_ends
from areal_like.data.tasks.base import RowSequence
from areal_like.data.user_code import SearchFolders, config_error


class RawRows(NamedTuple):
    """Rows before any check."""

    rows: Sequence[Any]
    source: str
    """A description of their origin, for messages."""
    place: Callable[[int], str]
    """Index -> place of a row, for messages."""
    content: str
    """Changes when the rows change, as far as that shows without reading them."""


class JoinedRows(RowSequence):
    """The rows of several sources, one source after the other."""

    def __init__(self, parts: Sequence[Sequence[Any]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._parts)

    def row(self, index: int) -> Any:
        part, at = self.locate(range(len(self))[index])
        return self._parts[part][at]

    def locate(self, index: int) -> tuple[int, int]:
        """The source of a row, and its index there."""
        part = bisect_right(self._ends, index)
        return part, index - (self._ends[part - 1] if part else 0)


def joined(sources: Sequence[RawRows]) -> RawRows:
    if len(sources) == 1:
        return sources[0]
    rows = JoinedRows([each.rows for each in sources])

    def place(number: int) -> str:
        part, at = rows.locate(number)
        return sources[part].place(at)

    return RawRows(
        rows, " and ".join(each.source for each in sources), place, " ".join(each.content for each in sources)
    )


class DatasetSource(NamedTuple):
    """The settings of a dataset about the origin of its rows; `section` is its key, `split` is `train` or `valid`,
    `record` the file where a run records the revision, in the directory of the run."""

    section: str
    split: str
    dataset: Any
    record: Path | None = None

    @property
    def key(self) -> str:
        return f"{self.section}.path"

    @property
    def names(self) -> tuple[str, ...]:
        return split_names(self.split, self.dataset.split)

    def find(self, places: SearchFolders, tasks: Iterable[str]) -> RawRows:
        """The rows of all paths, one path after the other."""
        paths = paths_of(self.dataset.path)
        if not paths:
            raise config_error(self.key, "is empty; set a file or folder here, or a task in task.name")
        revisions = revisions_of(self.dataset)
        return joined([self._at(*each, places, tasks) for each in zip(paths, revisions, strict=True)])

    def _at(self, path: str, revision: str | None, places: SearchFolders, tasks: Iterable[str]) -> RawRows:
        candidates = list(dict.fromkeys(place / Path(path).expanduser() for place in places))
        for candidate in candidates:
            if candidate.is_file():
                self._refuse(f"{candidate.resolve()} is one file", "revision", revision)
                return self._of_file(candidate.resolve())
            if candidate.is_dir():
                self._refuse(f"{candidate.resolve()} is a local folder", "revision", revision)
                return self._of_folder(candidate.resolve())
        if not is_hub_name(path):
            raise config_error(
                self.key,
                f"{path} is not a file of JSON lines or parquet, nor a folder (searched: "
                f"{', '.join(map(str, candidates))}), "
                f"nor a name on the Hub (such as org/name), nor a built-in task ({', '.join(tasks)}); a task of "
                "your own is set in task.name",
            )
        folder = snapshot(self.key, path, revision, self.record)
        rows, split = read_hub(self.key, folder, self.dataset.subset, self.names)
        return _numbered(rows, f"split {split} of {path} (revision {folder.name[:12]})", f"{folder.name} {split}")

    def refuse(self, reason: str, *names: str) -> None:
        """Raises if one of these keys is set, which do not apply."""
        for name in names:
            self._refuse(reason, name, getattr(self.dataset, name))

    def _refuse(self, reason: str, name: str, value: str | None) -> None:
        if value is not None:
            raise config_error(f"{self.section}.{name}", f"{reason}, and has no {name} {value}; leave it out")

    @property
    def _cache(self) -> RowCache:
        return RowCache(None if self.record is None else self.record.parent / ROW_CACHE)

    def _of_file(self, file: Path) -> RawRows:
        self.refuse(f"{file} is one file", "split", "subset")
        return self._of_files([file])

    def _of_files(self, files: Sequence[Path]) -> RawRows:
        try:
            return self._read(files)
        except OSError as fault:
            message = f"{fault.filename or files[0]} cannot be read: {fault.strerror}"
            raise config_error(self.key, message, fault) from fault

    def _read(self, files: Sequence[Path]) -> RawRows:
        first = files[0]
        if first.suffix == PARQUET:
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            return _numbered(read_parquet(self.key, files, self._cache), f"{first}{more}", content_of_ends(files))
        if first.suffix == JSON and (rows := read_list(self.key, first, self._cache)) is not None:
            return _numbered(rows, str(first), content_of_ends(files))
        lines = JsonLineRows(self.key, first, self._cache)
        return RawRows(lines, str(first), lines.place, lines.content)

    def _of_folder(self, folder: Path) -> RawRows:
        self.refuse(f"{folder} is a local folder", "subset")
        if (folder / SAVED_DATASET_DICT).is_file():
            splits = saved_splits(self.key, folder)
            split = next((name for name in self.names if name in splits), None)
            if split is None:
                message = f"{folder} has no split {' or '.join(self.names)}; it has {', '.join(splits)}"
                raise config_error(f"{self.section}.split", message)
            folder = folder / split
        elif (folder / SAVED_DATASET).is_file():
            self.refuse(f"{folder} has the rows of one split only", "split")
        if (folder / SAVED_DATASET).is_file():
            content = content_of_ends([folder / SAVED_DATASET])  # the dataset's fingerprint is in it
            return _numbered(read_saved_dataset(self.key, folder), str(folder), content)
        if files := split_files(folder, self.names):
            return self._of_files(files)
        raise config_error(self.key, no_split_message(folder, self.names))


def _numbered(rows: Sequence[Any], source: str, content: str) -> RawRows:
    return RawRows(rows, source, lambda number: f"row {number} of {source}", content)
