"""Where the rows of a dataset are by its path: a file, a folder, or a name on the Hub."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.data.arrow_tables import read_parquet, read_saved_dataset, saved_splits
from areal_like.data.dataset_files import SAVED_DATASET, SAVED_DATASET_DICT, SPLIT_NAMES, no_split_message, split_files
from areal_like.data.hub import read_hub, snapshot
from areal_like.data.hub_cache import is_hub_name
from areal_like.data.json_lines import JsonLineRows, read_list
from areal_like.data.user_code import SearchFolders, config_error


class RawRows(NamedTuple):
    """Rows before any check."""

    rows: Sequence[Any]
    source: str
    """Where they come from, in words."""
    place: Callable[[int], str]
    """Where a row stands, for who has to mend it."""


class DatasetSource(NamedTuple):
    """What the keys of a dataset say of where its rows are; `section` is its own key, `split` what it is to the
    experiment, `record` where a run writes down what was found on the Hub."""

    section: str
    split: str
    dataset: Any
    record: Path | None = None

    @property
    def key(self) -> str:
        return f"{self.section}.path"

    @property
    def names(self) -> tuple[str, ...]:
        said: str | None = self.dataset.split
        return SPLIT_NAMES[self.split] if said is None else (said,)

    def find(self, places: SearchFolders, tasks: Iterable[str]) -> RawRows:
        path: str = self.dataset.path
        if not path:
            raise config_error(self.key, "no rows are named: give a file or folder here, or a task in task.name")
        looked = list(dict.fromkeys(place / Path(path).expanduser() for place in places))
        for found in looked:
            if found.is_file():
                return self._of_file(found.resolve())
            if found.is_dir():
                return self._of_folder(found.resolve())
        if not is_hub_name(path):
            raise config_error(
                self.key,
                f"{path} is no file of JSON lines or parquet and no folder (looked for {', '.join(map(str, looked))}), "
                f"no name on the Hub (such as org/name), and no task that is built in ({', '.join(tasks)}); a task of "
                "your own belongs in task.name",
            )
        folder = snapshot(self.key, path, self.dataset.revision, self.record)
        rows, split = read_hub(self.key, folder, self.dataset.subset, self.names)
        return _numbered(rows, f"split {split} of {path} (revision {folder.name[:12]})")

    def refuse(self, why: str, *names: str) -> None:
        """What is said of rows that have no such thing."""
        for name in names:
            if (said := getattr(self.dataset, name)) is not None:
                raise config_error(f"{self.section}.{name}", f"{why}, and has no {name} {said}; leave it out")

    def _of_file(self, file: Path) -> RawRows:
        self.refuse(f"{file} is one file", "split", "subset", "revision")
        return self._of_files([file])

    def _of_files(self, files: Sequence[Path]) -> RawRows:
        first = files[0]
        if first.suffix == ".parquet":
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            return _numbered(read_parquet(self.key, files), f"{first}{more}")
        if first.suffix == ".json" and (rows := read_list(self.key, first)) is not None:
            return _numbered(rows, str(first))
        lines = JsonLineRows(self.key, first)
        return RawRows(lines, str(first), lines.place)

    def _of_folder(self, folder: Path) -> RawRows:
        self.refuse(f"{folder} is a folder of this machine", "subset", "revision")
        if (folder / SAVED_DATASET_DICT).is_file():
            there = saved_splits(folder)
            split = next((name for name in self.names if name in there), None)
            if split is None:
                message = f"{folder} has no split {' or '.join(self.names)}; it has {', '.join(there)}"
                raise config_error(f"{self.section}.split", message)
            folder = folder / split
        elif (folder / SAVED_DATASET).is_file():
            self.refuse(f"{folder} holds the rows of one", "split")
        if (folder / SAVED_DATASET).is_file():
            return _numbered(read_saved_dataset(self.key, folder), str(folder))
        if files := split_files(folder, self.names):
            return self._of_files(files)
        raise config_error(self.key, no_split_message(folder, self.names))


def _numbered(rows: Sequence[Any], source: str) -> RawRows:
    return RawRows(rows, source, lambda number: f"row {number} of {source}")
