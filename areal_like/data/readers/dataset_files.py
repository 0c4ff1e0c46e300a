"""The files that rows are in: their formats, and those of a split in a folder. Standard library only, since the plan
uses it too."""

from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path

SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "validation", "test")}
"""Dataset of an experiment -> names of its split."""

JSON_LINES, JSON, PARQUET = SUFFIXES = (".jsonl", ".json", ".parquet")
_FILES = (*(f"{{}}{suffix}" for suffix in SUFFIXES), f"{{}}-*{PARQUET}")
FILE_PATTERNS = (*_FILES, *(f"data/{file}" for file in _FILES))
"""Where a folder may contain the rows of a split."""

SAVED_DATASET, SAVED_DATASET_DICT = "state.json", "dataset_dict.json"
"""Files that `datasets.save_to_disk` writes into the folder of one dataset, and of several splits."""

TABLES = (f"*{PARQUET}", f"data/*{PARQUET}", SAVED_DATASET, SAVED_DATASET_DICT)
"""Files that mark a folder whose rows pyarrow reads."""


def begins_list(start: bytes) -> bool:
    """Whether a file that begins so has one JSON list."""
    return start.removeprefix(BOM_UTF8).lstrip().startswith(b"[")


def is_arrow(place: Path) -> bool:
    """Whether pyarrow reads the rows of this file or folder."""
    return place.suffix == PARQUET if place.is_file() else any(next(place.glob(each), None) for each in TABLES)


def split_names(dataset: str, split: str | None) -> tuple[str, ...]:
    """Names that the split of `train` or `valid` may have; `split`: the one that is set."""
    return SPLIT_NAMES[dataset] if split is None else (split,)


def split_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of the first pattern with a match; none if no pattern matches."""
    for pattern in _patterns(names):
        if files := sorted(folder.glob(pattern)):
            return [file.resolve() for file in files]
    return []


def no_split_message(folder: Path, names: Sequence[str]) -> str:
    patterns = " or ".join(_patterns(names)[:: len(FILE_PATTERNS)])
    others = "no other file of that split, and none in its folder data"
    return f"the folder {folder} has no {patterns}, {others}; set the path of a file"


def empty_message(source: str) -> str:
    return f"{source} has no rows: it is empty"


def too_few_message(size: int, source: str, rows: int) -> str:
    """For a batch that is larger than the dataset."""
    few = f"{size} rows make a batch, but {source} has only {rows}"
    return f"{few}: lower it, or set train_dataset.drop_last=false"


def _patterns(names: Sequence[str]) -> list[str]:
    return [pattern.format(name) for name in names for pattern in FILE_PATTERNS]
