"""What a store of names is: where each process of a run enters its address, and finds those of the others."""

import os
import time
from abc import ABC, abstractmethod
from typing import NamedTuple, Self

import orjson

from areal_like.process.errors import Failure
from areal_like.process.identity import Identity
from areal_like.process.wait import NamedWait

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5


class NameTaken(Failure):
    """Somebody else holds the name; `holder` says who, in words."""

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(f"the name {name} is held by {holder}")
        self.name, self.holder = name, holder


class NameMissing(LookupError):
    """Nobody who lives holds the name."""

    def __init__(self, name: str, why: str = "nobody has entered it") -> None:
        super().__init__(f"no entry under the name {name}: {why}")
        self.name = name


class NameStore(ABC):
    """Entries below one prefix. What is added here is kept alive until it is deleted, or this is closed.

    A name is parts with slashes between, such as `server/0`. An entry lives as long as its process does.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.lost: dict[str, str] = {}
        """Names added here that vanished since, or that somebody else took over, and who has them now, in words."""

    @abstractmethod
    def add(self, name: str, value: str, replace: bool = False, waiting: NamedWait | None = None) -> None:
        """Holds the name from now on, or raises NameTaken. `replace` puts a new value into an entry of one's own.

        Where only time can tell whether the holder lives, `waiting` is how long to watch it before taking over.
        """

    @abstractmethod
    def get(self, name: str) -> str:
        """The value, or NameMissing."""

    @abstractmethod
    def find(self, prefix: str = "") -> dict[str, str]:
        """All living entries at and below a name, in order; numbers in names count as numbers."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Removes an entry, whoever holds it (who does so finds it in its `lost`), or raises NameMissing."""

    @abstractmethod
    def clear(self, prefix: str = "") -> None:
        """Removes what others entered at and below a name, be they alive or dead. One's own entries stay."""

    @abstractmethod
    def close(self) -> None:
        """Deletes one's own entries."""

    def wait(self, name: str, waiting: NamedWait) -> str:
        """The value, as soon as there is one."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return self.get(name)
            except NameMissing:
                waiting.check()
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)

    def full(self, name: str) -> str:
        return "/".join(filter(None, [self.prefix, name]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def name_parts(name: str) -> tuple[str, ...]:
    """Of a name. The empty one has none: it stands for all."""
    if not name:
        return ()
    found = tuple(name.split("/"))
    if not all(found):
        raise ValueError(f"{name!r} is no name: a name is parts with single slashes between, such as server/0")
    name.encode()  # what is no text cannot be stored
    return found


def sorted_entries(entries: dict[str, str]) -> dict[str, str]:
    return dict(sorted(entries.items(), key=lambda entry: [_rank(part) for part in entry[0].split("/")]))


def _rank(part: str) -> tuple[int, int, str]:
    return (0, int(part), part) if part.isdecimal() else (1, 0, part)


class Entry(NamedTuple):
    """What a process of a run enters under its name. `address` is host:port."""

    address: str
    attempt: int
    incarnation: int
    pid: int


def announce(names: NameStore, me: Identity, address: str, waiting: NamedWait | None = None) -> None:
    """Enters this process under its own name."""
    entry = Entry(address, me.attempt, me.incarnation, os.getpid())
    names.add(me.name, orjson.dumps(entry._asdict()).decode(), replace=True, waiting=waiting)


def parse_entry(value: str) -> Entry:
    """What `announce` entered."""
    said = orjson.loads(value)
    return Entry(said["address"], said["attempt"], said["incarnation"], said["pid"])
