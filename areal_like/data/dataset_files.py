"""Finds the files of a split in a folder. Standard library only, since the plan uses it too."""

from collections.abc import Sequence
from pathlib import Path

SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "validation", "test")}
"""Dataset of an experiment -> names of its split."""

FILE_PATTERNS = ("{}.jsonl", "{}.json", "{}.parquet", "{}-*.parquet", "data/{}-*.parquet")
"""Where a folder may contain the rows of a split."""

SAVED_DATASET, SAVED_DATASET_DICT = "state.json", "dataset_dict.json"
"""Files that `datasets.save_to_disk` writes into the folder of one dataset, and of several splits."""


def split_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of the first pattern with a match; none if no pattern matches."""
    for pattern in _patterns(names):
        if files := sorted(folder.glob(pattern)):
            return [file.resolve() for file in files]
    return []


def no_split_message(folder: Path, names: Sequence[str]) -> str:
    patterns = " or ".join(_patterns(names)[:: len(FILE_PATTERNS)])
    return f"the folder {folder} has no {patterns}, and no parquet files of that name; set the path of a file"


def empty_message(source: str) -> str:
    return f"{source} has no rows: it is empty"


def too_few_message(size: int, source: str, rows: int) -> str:
    """For a batch that is larger than the dataset."""
    few = f"{size} rows make a batch, but {source} has only {rows}"
    return f"{few}: lower it, or set train_dataset.drop_last=false"


def _patterns(names: Sequence[str]) -> list[str]:
    return [pattern.format(name) for name in names for pattern in FILE_PATTERNS]
