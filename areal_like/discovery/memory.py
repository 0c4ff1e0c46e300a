"""Names within one process, for tests."""

import threading
from typing import NamedTuple

from areal_like.discovery.base import NameMissing, NameStore, NameTaken, name_parts, sorted_entries
from areal_like.process.wait import NamedWait


class _MemoryEntry(NamedTuple):
    value: str
    names: "MemoryNameStore"
    name: str


class MemoryEntries:
    """What several `MemoryNames` share."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, ...], _MemoryEntry] = {}
        self.guard = threading.RLock()


SHARED = MemoryEntries()
"""That of runs with `cluster.name_resolve.type=memory`."""


class MemoryNameStore(NameStore):
    """Entries live until they are deleted or who added them closes: there is no other process that could die."""

    def __init__(self, prefix: str, owner: str, store: MemoryEntries) -> None:
        super().__init__(prefix)
        self._owner, self._store = owner, store
        self._base = name_parts(prefix)

    def add(self, name: str, value: str, replace: bool = False, waiting: NamedWait | None = None) -> None:
        place = self._place(name)
        with self._store.guard:
            held = self._store.entries.get(place)
            if held is not None and not (replace and held.names is self):
                raise NameTaken(self.full(name), f"{held.names._owner} in this process")
            self._store.entries[place] = _MemoryEntry(value, self, name)
            self.lost.pop(name, None)

    def get(self, name: str) -> str:
        with self._store.guard:
            held = self._store.entries.get(self._place(name))
        if held is None:
            raise NameMissing(self.full(name))
        return held.value

    def find(self, prefix: str = "") -> dict[str, str]:
        with self._store.guard:
            found = {"/".join(place[len(self._base) :]): held.value for place, held in self._below(prefix).items()}
        return sorted_entries(found)

    def delete(self, name: str) -> None:
        with self._store.guard:
            if self._place(name) not in self._store.entries:
                raise NameMissing(self.full(name))
            self._remove(self._place(name))

    def clear(self, prefix: str = "") -> None:
        with self._store.guard:
            for place, held in self._below(prefix).items():
                if held.names is not self:
                    self._remove(place)

    def close(self) -> None:
        with self._store.guard:
            for place, held in list(self._store.entries.items()):
                if held.names is self:
                    self._remove(place)

    def _remove(self, place: tuple[str, ...]) -> None:
        held = self._store.entries.pop(place)
        if held.names is not self:
            held.names.lost[held.name] = "its entry was removed"

    def _place(self, name: str) -> tuple[str, ...]:
        if not name_parts(name):
            raise ValueError("a name must not be empty")
        return self._base + name_parts(name)

    def _below(self, prefix: str) -> dict[tuple[str, ...], _MemoryEntry]:
        top = self._base + name_parts(prefix)
        return {place: held for place, held in self._store.entries.items() if place[: len(top)] == top}
