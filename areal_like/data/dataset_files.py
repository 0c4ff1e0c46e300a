"""Which files of a folder have the rows of a split. Needs nothing but Python: a plan looks there too."""

from collections.abc import Sequence
from pathlib import Path

SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "validation", "test")}
"""What the split of an experiment's dataset may be called where its data is of several."""

FILE_PATTERNS = ("{}.jsonl", "{}.json", "{}.parquet", "{}-*.parquet", "data/{}-*.parquet")
"""Where a folder may have the rows of a split."""

SAVED_DATASET, SAVED_DATASET_DICT = "state.json", "dataset_dict.json"
"""What `datasets.save_to_disk` leaves in the folder of one dataset, and of several by name."""


def split_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of the first pattern that fits any; none where the folder has no such rows."""
    for pattern in _patterns(names):
        if files := sorted(folder.glob(pattern)):
            return [file.resolve() for file in files]
    return []


def no_split_message(folder: Path, names: Sequence[str]) -> str:
    """What is said where there are none."""
    wanted = " or ".join(_patterns(names)[:: len(FILE_PATTERNS)])
    return f"the folder {folder} has no {wanted}, and no parquet files of that name; name the file itself"


def empty_message(source: str) -> str:
    return f"{source} has no rows: it is empty"


def too_few_message(size: int, source: str, rows: int) -> str:
    """What is said of a batch that is larger than the data."""
    few = f"{size} rows make a batch, but {source} has only {rows}"
    return f"{few}: lower it, or set train_dataset.drop_last=false"


def _patterns(names: Sequence[str]) -> list[str]:
    return [pattern.format(name) for name in names for pattern in FILE_PATTERNS]
