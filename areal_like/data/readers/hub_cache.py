"""Datasets in the local cache of the Hugging Face Hub, in huggingface_hub's layout. Standard library only, since the
plan uses it too."""

import json
import re
from pathlib import Path

from areal_like.data.readers.dataset_files import SUFFIXES

REPOSITORY = "datasets--"
NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_name(path: str) -> bool:
    return NAME.fullmatch(path) is not None and not path.endswith(SUFFIXES)


def cached_dataset(name: str, revision: str | None, cache: Path) -> Path | None:
    """The complete snapshot of a branch, tag or commit (None: `main`); None if missing or incomplete."""
    repository = cache / (REPOSITORY + name.replace("/", "--"))
    reference = repository / "refs" / (revision or "main")
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    folder = repository / "snapshots" / (commit or "main")
    return folder if folder.is_dir() and not _missing_files(repository, folder) else None


def _missing_files(repository: Path, folder: Path) -> list[str]:
    """Files that an interrupted download left out. Older versions of huggingface_hub wrote no list."""
    listing = repository / "trees" / f"{folder.name}.json"
    files = json.loads(listing.read_bytes())["files"] if listing.is_file() else {}
    return [file for file in files if not (folder / file).exists()]


def not_cached_message(name: str, revision: str | None, cache: Path, why: str) -> str:
    """For a dataset that is not in the cache: the problem and the remedy."""
    which = name if revision is None else f"{name} at revision {revision}"
    command = f"python -m areal_like.models.fetch --dataset {name}" + (f" --revision {revision}" if revision else "")
    hint = f"download it with `{command}` on a machine with a network, or set the path of a file or folder"
    return f"{which} is not in the Hugging Face cache ({cache}), and {why}; {hint}"
