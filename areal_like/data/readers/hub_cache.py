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


def cached_dataset(name: str, revision: str | None, cache: Path, unlisted: bool = False) -> Path | None:
    """The complete snapshot of a branch, tag or commit (None: `main`); None if missing or incomplete. `unlisted`: also
    one without a list of its files. Only a download of the whole writes that list; `load_dataset` fetches one subset,
    and leaves none."""
    repository = cache / (REPOSITORY + name.replace("/", "--"))
    reference = repository / "refs" / (revision or "main")
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    folder = repository / "snapshots" / (commit or "main")
    listing = repository / "trees" / f"{folder.name}.json"
    if not folder.is_dir() or not (unlisted or listing.is_file()):
        return None
    files = json.loads(listing.read_bytes())["files"] if listing.is_file() else {}
    return folder if all((folder / file).exists() for file in files) else None


def missing_file_message(folder: Path, why: str) -> str | None:
    """For a snapshot in which a file was not found, the remedy; None if all of it is there."""
    repository, cache = folder.parents[1].name, folder.parents[2]
    name = repository.removeprefix(REPOSITORY).replace("--", "/", 1)
    if cached_dataset(name, folder.name, cache) is not None:
        return None
    return not_cached_message(name, folder.name, cache, why, "only in part")


def not_cached_message(name: str, revision: str | None, cache: Path, why: str, there: str = "not") -> str:
    """For a dataset that is not in the cache, or `only in part`: the problem and the remedy."""
    which = name if revision is None else f"{name} at revision {revision}"
    command = f"python -m areal_like.models.fetch --dataset {name}" + (f" --revision {revision}" if revision else "")
    hint = f"download it with `{command}` on a machine with a network, or set the path of a file or folder"
    return f"{which} is {there} in the Hugging Face cache ({cache}), and {why}; {hint}"
