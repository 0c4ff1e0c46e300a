"""The store of names: picked by `cluster.name_resolve.type`."""

import getpass
import os
from pathlib import Path
from typing import Any

from areal_like.discovery.base import Entry, NameMissing, Names, NameTaken, announce, parse
from areal_like.discovery.files import FileNames
from areal_like.discovery.memory import SHARED, MemoryNames, MemoryStore
from areal_like.process.identity import Identity
from areal_like.process.run import Run

__all__ = [
    "Entry",
    "MemoryStore",
    "NameMissing",
    "NameTaken",
    "Names",
    "announce",
    "files_names",
    "memory_names",
    "names_for",
    "open_names",
    "parse",
    "prefix_of",
]

KNOWN = ("nfs", "memory")
TYPE_KEY = "cluster.name_resolve.type"


def open_names(run: Run, me: Identity) -> Names:
    """The names of a run, for one of its processes."""
    return names_for(run.config, run.cwd, me.name)


def names_for(config: Any, cwd: Path, owner: str) -> Names:
    """The same before there is a run; `cwd` is where the command was given, `owner` what others call this process."""
    chosen = config.cluster.name_resolve
    if chosen.type == "nfs":
        return files_names(cwd / Path(chosen.nfs_record_root).expanduser(), prefix_of(config), owner, chosen.ttl_s)
    if chosen.type == "memory":
        return memory_names(prefix_of(config), owner)
    raise ValueError(
        f"{TYPE_KEY}: {chosen.type} is not there yet (known: {', '.join(KNOWN)}); use {TYPE_KEY}=nfs, with a folder "
        "that all nodes see in cluster.name_resolve.nfs_record_root"
    )


def files_names(root: str | Path, prefix: str, owner: str, ttl_s: float) -> Names:
    """Files below `root`, which every process must see."""
    return FileNames(Path(root).absolute(), prefix, owner, ttl_s)


def memory_names(prefix: str, owner: str, store: MemoryStore = SHARED) -> Names:
    """In this process alone."""
    return MemoryNames(prefix, owner, store)


def prefix_of(config: Any) -> str:
    """{user}/{experiment}/{trial}"""
    return f"{_user()}/{config.experiment_name}/{config.trial_name}"


def _user() -> str:
    """In a container the user may have a number and no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
