"""Datasets of the Hugging Face Hub: the revision is resolved once per run, and recorded."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal_like.config.problems import ConfigError
from areal_like.data.data_record import open_section
from areal_like.data.readers.arrow_tables import TableRows, import_package
from areal_like.data.readers.hub_cache import cached_dataset, missing_file_message, not_cached_message
from areal_like.data.user_code import config_error
from areal_like.models import hub_cache
from areal_like.models.fetch import FetchFailed, fetch_dataset

DEFAULT_SUBSET = "main"
"""The subset of a dataset with several and no default."""

log = logging.getLogger(__name__)


def snapshot(key: str, name: str, revision: str | None, record: Path | None) -> Path:
    """Its folder in the local cache, downloaded if missing. All processes of a run, and all later attempts, use the
    revision that the first one resolved."""
    with open_section(record, key.removesuffix(".path")) as entry:
        known: dict[str, Any] = entry.setdefault("hub", {})
        earlier = known.get(name)
        if isinstance(earlier, dict) and earlier["asked"] == revision:
            return _snapshot(key, name, earlier["revision"])
        folder = _snapshot(key, name, revision)
        known[name] = {"asked": revision, "revision": folder.name, "folder": str(folder)}
    log.info("%s: %s is revision %s", key, name, folder.name)
    return folder


def _snapshot(key: str, name: str, revision: str | None) -> Path:
    if (folder := cached_dataset(name, revision, hub_cache())) is not None:
        return folder
    import_package(key, "huggingface_hub.utils", name).disable_progress_bars()
    log.info("%s: fetching %s from the Hugging Face Hub", key, name)
    try:
        return fetch_dataset(name, revision)
    except FetchFailed as refusal:
        if (folder := cached_dataset(name, revision, hub_cache(), unlisted=True)) is not None:
            log.warning("%s: %s; uses what is in the cache of %s, which may be a part of it", key, refusal, name)
            return folder
        message = not_cached_message(name, revision, hub_cache(), str(refusal))
        raise config_error(key, message, refusal) from refusal


def read_hub(key: str, folder: Path, subset: str | None, names: Sequence[str]) -> tuple[TableRows, str]:
    """One split of a snapshot, the first of `names` that exists, and its name. Files are found by the dataset's own
    metadata."""
    datasets = import_package(key, "datasets", folder)
    datasets.disable_progress_bars()
    try:
        subset = subset or _only_subset(datasets, key, folder)
        splits = datasets.get_dataset_split_names(str(folder), subset)
        split = next((name for name in names if name in splits), None)
        if split is not None:
            return TableRows(datasets.load_dataset(str(folder), subset, split=split).data.table), split
    except ConfigError:
        raise
    except Exception as fault:  # of the library, or of any of its readers
        lacks = missing_file_message(folder, f"a file is missing ({_short(fault)})")
        unread = f"{folder} cannot be read as a dataset: {_short(fault)}"
        missing = isinstance(fault, FileNotFoundError) and lacks
        raise config_error(key, missing or unread, fault) from fault
    raise config_error(
        key.replace(".path", ".split"), f"there is no split {' or '.join(names)}; splits are {', '.join(splits)}"
    )


def _only_subset(datasets: Any, key: str, folder: Path) -> str | None:
    """The subset if none is set: the dataset's default, else `main`."""
    names = datasets.get_dataset_config_names(str(folder))
    if len(names) < 2 or datasets.get_dataset_default_config_name(str(folder)) is not None:
        return None
    if DEFAULT_SUBSET in names:
        return DEFAULT_SUBSET
    subset = key.replace(".path", ".subset")
    raise config_error(subset, f"the dataset has several subsets and no default; set one of {', '.join(names)}")


def _short(fault: BaseException) -> str:
    """The first line: libraries append advice."""
    return f"{type(fault).__name__}: {str(fault).strip().partition(chr(10))[0][:300]}"
