"""Name stores: how the processes of a run find each other; picked by `cluster.name_resolve.type`."""

import getpass
import os
from pathlib import Path
from typing import Any

from areal_like.config.sections.cluster import NameResolveConfig
from areal_like.discovery.base import Entry, Holder, NameMissing, NameStore, NameTaken, announce, parse_entry
from areal_like.discovery.files import FileNameStore, UnusableFolder
from areal_like.discovery.memory import SHARED, MemoryEntries, MemoryNameStore
from areal_like.process.identity import Identity
from areal_like.process.run import Run

__all__ = [
    "Entry",
    "Holder",
    "MemoryEntries",
    "NameMissing",
    "NameStore",
    "NameTaken",
    "UnusableFolder",
    "announce",
    "etcd_name_store",
    "file_name_store",
    "memory_name_store",
    "name_store_for",
    "open_name_store",
    "parse_entry",
    "run_prefix",
]

KNOWN = ("nfs", "etcd3", "memory")
TYPE_KEY = "cluster.name_resolve.type"


def open_name_store(run: Run, me: Identity) -> NameStore:
    """The name store of a run, for one of its processes."""
    return name_store_for(run.config, run.cwd, me.name)


def name_store_for(config: Any, cwd: Path, owner: str) -> NameStore:
    """The same before the run exists. `cwd`: where the command was given. `owner`: this process's name."""
    section, prefix = config.cluster.name_resolve, run_prefix(config)
    if section.type == "nfs":
        return file_name_store(cwd / Path(section.nfs_record_root).expanduser(), prefix, owner, section.ttl_s)
    if section.type == "etcd3":
        return etcd_name_store(section, cwd, prefix, owner)
    if section.type == "memory":
        return memory_name_store(prefix, owner)
    raise ValueError(f"{TYPE_KEY}: {section.type} is not built yet (known: {', '.join(KNOWN)}); use {TYPE_KEY}=nfs")


def file_name_store(root: str | Path, prefix: str, owner: str, ttl_s: float, is_private: bool = True) -> NameStore:
    """Names in files below `root`, which every process must see. Not `is_private`: other users may read them."""
    return FileNameStore(Path(root).absolute(), prefix, owner, ttl_s, is_private)


def etcd_name_store(section: NameResolveConfig, cwd: Path, prefix: str, owner: str) -> NameStore:
    """Names in etcd. `cwd`: where relative paths of certificates start."""
    from areal_like.discovery.etcd import EtcdNameStore  # needs a package that other kinds do not

    return EtcdNameStore(section, cwd, prefix, owner)


def memory_name_store(prefix: str, owner: str, store: MemoryEntries = SHARED) -> NameStore:
    """Names in this process only."""
    return MemoryNameStore(prefix, owner, store)


def run_prefix(config: Any) -> str:
    """{user}/{experiment}/{trial}"""
    return f"{user_name()}/{config.experiment_name}/{config.trial_name}"


def user_name() -> str:
    """The uid if the user has no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
