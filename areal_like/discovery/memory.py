"""Name store within one process, for tests."""

import threading
import time
from typing import NamedTuple

from areal_like.discovery.base import (
    SINCE_FORMAT,
    Holder,
    NameMissing,
    NameStore,
    NameTaken,
    name_parts,
    sorted_entries,
)
from areal_like.discovery.owner import this_process
from areal_like.process.wait import NamedWait


class _MemoryEntry(NamedTuple):
    value: str
    names: "MemoryNameStore"
    name: str
    since: str


class MemoryEntries:
    """Entries shared by several MemoryNameStores."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, ...], _MemoryEntry] = {}
        self.lock = threading.RLock()


SHARED = MemoryEntries()
"""For runs with `cluster.name_resolve.type=memory`."""


class MemoryNameStore(NameStore):
    """Entries live until they are deleted or the store that added them is closed."""

    def __init__(self, prefix: str, owner: str, store: MemoryEntries) -> None:
        super().__init__(prefix)
        self._owner, self._store = owner, store
        self._base = name_parts(prefix)

    def add(self, name: str, value: str, replace: bool = False, waiting: NamedWait | None = None) -> None:
        path = self._path(name)
        with self._store.lock:
            held = self._store.entries.get(path)
            if held is not None and not (replace and held.names is self):
                raise NameTaken(self.full(name), f"{held.names._owner} in this process")
            self._store.entries[path] = _MemoryEntry(value, self, name, time.strftime(SINCE_FORMAT))
            self.lost.pop(name, None)

    def get(self, name: str) -> str:
        with self._store.lock:
            held = self._store.entries.get(self._path(name))
        if held is None:
            raise NameMissing(self.full(name))
        return held.value

    def find(self, prefix: str = "") -> dict[str, str]:
        with self._store.lock:
            entries = {"/".join(path[len(self._base) :]): held.value for path, held in self._below(prefix).items()}
        return sorted_entries(entries)

    def holder(self, name: str) -> Holder | None:
        with self._store.lock:
            held = self._store.entries.get(self._path(name))
        return None if held is None else Holder(this_process(), held.names._owner, held.since)

    def delete(self, name: str) -> None:
        with self._store.lock:
            if self._path(name) not in self._store.entries:
                raise NameMissing(self.full(name))
            self._remove(self._path(name))

    def clear(self, prefix: str = "") -> None:
        with self._store.lock:
            for path, held in self._below(prefix).items():
                if held.names is not self:
                    self._remove(path)

    def close(self) -> None:
        with self._store.lock:
            for path, held in list(self._store.entries.items()):
                if held.names is self:
                    self._remove(path)

    def _remove(self, path: tuple[str, ...]) -> None:
        held = self._store.entries.pop(path)
        if held.names is not self:
            held.names.lost[held.name] = "its entry was removed"

    def _path(self, name: str) -> tuple[str, ...]:
        if not name_parts(name):
            raise ValueError("a name must not be empty")
        return self._base + name_parts(name)

    def _below(self, prefix: str) -> dict[tuple[str, ...], _MemoryEntry]:
        top = self._base + name_parts(prefix)
        return {path: held for path, held in self._store.entries.items() if path[: len(top)] == top}
