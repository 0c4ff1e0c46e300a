"""A dataset by its name on the Hugging Face Hub: which revision it is is settled once for a run, and written down."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal_like.data.named import problem
from areal_like.data.record import known_of
from areal_like.data.tables import TableRows, library
from areal_like.models import hub_cache

log = logging.getLogger(__name__)


def is_hub_name(path: str) -> bool:
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", path) is not None and not path.endswith(
        (".json", ".jsonl", ".parquet")
    )


def snapshot(key: str, name: str, revision: str | None, record: Path | None) -> Path:
    """The folder of it in the local cache, fetched where it is not there. All processes of a run, and all its later
    attempts, take the revision that the first of them took."""
    hub = library(key, "huggingface_hub", name)
    library(key, "huggingface_hub.utils", name).disable_progress_bars()
    log.info("%s: looking for %s in the cache and on the Hub", key, name)
    with known_of(record, key.partition(".")[0]) as known:
        earlier = known.get("hub", {})
        if (earlier.get("name"), earlier.get("asked")) == (name, revision):
            return _fetched(hub, key, name, earlier["revision"])
        folder = _fetched(hub, key, name, revision)
        known["hub"] = {"name": name, "asked": revision, "revision": folder.name, "folder": str(folder)}
    log.info("%s: %s is revision %s", key, name, folder.name)
    return folder


def _fetched(hub: Any, key: str, name: str, revision: str | None) -> Path:
    """Where nobody answers, what is in the cache is taken."""
    try:
        return Path(hub.snapshot_download(name, repo_type="dataset", revision=revision, cache_dir=hub_cache()))
    except (OSError, ValueError) as fault:  # its own errors are kinds of these
        which = name if revision is None else f"{name} at revision {revision}"
        hint = f"fetch it where there is a network (`hf download --repo-type dataset {name}`), or name a file or folder"
        raise problem(
            key, f"{which} is not in the cache, and the Hub does not give it: {_short(fault)}; {hint}", fault
        ) from fault


def read_hub(key: str, folder: Path, subset: str | None, wanted: Sequence[str]) -> tuple[TableRows, str]:
    """One split of a snapshot, by what the dataset says of its own files: the first of `wanted` that there is. Returns
    its name too."""
    datasets = library(key, "datasets", folder)
    datasets.disable_progress_bars()
    try:
        there = datasets.get_dataset_split_names(str(folder), subset)
        split = next((name for name in wanted if name in there), None)
        if split is not None:
            return TableRows(datasets.load_dataset(str(folder), subset, split=split).data.table), split
    except Exception as fault:  # of the library, or of any of the readers that it has
        raise problem(key, f"{folder} cannot be read as a dataset: {_short(fault)}", fault) from fault
    raise problem(
        key.replace(".path", ".split"), f"there is no split {' or '.join(wanted)}; there are {', '.join(there)}"
    )


def _short(fault: BaseException) -> str:
    """The first line: libraries add advice."""
    return f"{type(fault).__name__}: {str(fault).strip().partition(chr(10))[0][:300]}"
