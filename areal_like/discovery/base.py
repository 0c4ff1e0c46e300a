"""Name store interface: processes of a run enter their addresses and find those of the others."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Self

import orjson

from areal_like.discovery.owner import OwnerProcess, this_process
from areal_like.process import pulse
from areal_like.process.errors import Failure
from areal_like.process.identity import Identity
from areal_like.process.wait import NamedWait

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
MAX_DIGITS = 18
"""Python refuses to convert very long numbers, and a name may have any length."""
MAX_SHOWN = 80
"""Characters of a value that an error message shows."""
SINCE_FORMAT = "%Y-%m-%d %H:%M:%S %z"


class NameTaken(Failure):
    """Another process holds the name; `holder` describes it."""

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(f"the name {name} is held by {holder}")
        self.name, self.holder = name, holder


class NameMissing(LookupError):
    """No living process holds the name."""

    def __init__(self, name: str, why: str = "no process has entered it") -> None:
        super().__init__(f"no entry under the name {name}: {why}")
        self.name = name


class Holder(NamedTuple):
    """Who holds a name."""

    owner: OwnerProcess | None
    """None if it is not known; `process` then states why."""
    process: str
    """What that process calls itself, such as server/0."""
    since: str
    """When it took the name, as SINCE_FORMAT, in its own time zone."""

    def __str__(self) -> str:
        if self.owner is None:
            return f"an entry that cannot be read ({self.process})"
        return f"process {self.owner.pid} ({self.process}) on host {self.owner.host} since {self.since}"


def check_holder(holder: Holder) -> None:
    """Raises ValueError if no process of a run writes it so. All texts must be printable: a terminal that shows them
    obeys other characters."""
    owner = holder.owner
    if owner is None or not all(type(number) is int and number >= 0 for number in (owner.pid, owner.started)):
        raise ValueError("its process id or start is not a number")
    texts = (owner.host, owner.boot, owner.space, holder.process, holder.since)
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise ValueError("its process is not described by printable texts")


def printable(fault: Exception) -> str:
    """Its text, with other characters escaped."""
    return str(fault).encode("unicode_escape").decode()


class NameStore(ABC):
    """Entries below one prefix. Own entries are kept alive until they are deleted or the store is closed.

    A name consists of parts separated by slashes, such as `server/0`. An entry lives as long as its process: one that
    was killed on this machine is dead at once, any other one when it has not been renewed for its time to live.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.lost: dict[str, str] = {}
        """Own names that were removed or taken over since, and who has them now, as text."""

    def check(self) -> None:
        """Raises ConfigError where the store cannot be used now. For a start, before any process needs it."""
        self.find()

    @abstractmethod
    def add(self, name: str, value: str, replace: bool = False, waiting: NamedWait | None = None) -> None:
        """Takes the name, or raises NameTaken. `replace`: may overwrite an own entry. `waiting`: how long to watch a
        holder on another host before its name is taken over."""

    @abstractmethod
    def get(self, name: str) -> str:
        """The value, or NameMissing."""

    @abstractmethod
    def find(self, prefix: str = "") -> dict[str, str]:
        """All living entries at and below a name, sorted; numbers in names sort as numbers."""

    @abstractmethod
    def holder(self, name: str) -> Holder | None:
        """Who holds a name; None if no living process does."""

    def holds(self, name: str) -> bool:
        """Whether this process still has a name, as the store says now: `lost` may not say so yet after a pause."""
        holder = self.holder(name)
        return holder is not None and holder.owner == this_process()

    @abstractmethod
    def delete(self, name: str) -> None:
        """Removes an entry of any owner (which finds it in its `lost`), or raises NameMissing."""

    @abstractmethod
    def clear(self, prefix: str = "") -> None:
        """Removes other processes' entries at and below a name, alive or dead. Own entries stay."""

    @abstractmethod
    def close(self) -> None:
        """Deletes the own entries."""

    def wait(self, name: str, waiting: NamedWait) -> str:
        """Waits until the name has a value, and returns it."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return self.get(name)
            except NameMissing:
                waiting.check()
            pause_s = self._pause(name, pause_s)

    def watch(self, prefix: str, known: Mapping[str, str], waiting: NamedWait) -> dict[str, str]:
        """Waits until the entries at and below a name differ from `known`, and returns them."""
        pause_s = FIRST_PAUSE_S
        while (entries := self.find(prefix)) == known:
            waiting.check()
            pause_s = self._pause(prefix, pause_s)
        return entries

    def _pause(self, _prefix: str, pause_s: float) -> float:
        """Waits between two reads of a name, at most that long; returns the next pause."""
        time.sleep(pause_s)
        return min(1.5 * pause_s, LONGEST_PAUSE_S)

    def full(self, name: str) -> str:
        return "/".join(filter(None, [self.prefix, name]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def name_parts(name: str) -> tuple[str, ...]:
    """Parts of a name. The empty name has none: it stands for all."""
    if not name:
        return ()
    parts = tuple(name.split("/"))
    if not all(parts):
        raise ValueError(f"{name!r} is not a name: write parts with single slashes between, such as server/0")
    name.encode()  # lone surrogates cannot be stored
    return parts


def sorted_entries(entries: dict[str, str]) -> dict[str, str]:
    return dict(sorted(entries.items(), key=lambda entry: [_rank(part) for part in entry[0].split("/")]))


def _rank(part: str) -> tuple[int, int, str]:
    is_number = part.isdecimal() and len(part) <= MAX_DIGITS
    return (0, int(part), part) if is_number else (1, 0, part)


class Entry(NamedTuple):
    """The value that a process enters under its name. `address` is host:port."""

    address: str
    attempt: int
    incarnation: int
    pid: int


def announce(names: NameStore, me: Identity, address: str, waiting: NamedWait | None = None) -> None:
    """Enters this process's address under its name."""
    entry = Entry(address, me.attempt, me.incarnation, os.getpid())
    names.add(me.name, orjson.dumps(entry._asdict()).decode(), replace=True, waiting=waiting)
    pulse.serves()


def parse_entry(value: str) -> Entry:
    """Parses a value that `announce` entered. Raises Failure if it is another one."""
    try:
        entry = orjson.loads(value)
        numbers = [int(entry[name]) for name in ("attempt", "incarnation", "pid")]
        return Entry(str(entry["address"]), *numbers)
    except (ValueError, TypeError, KeyError, OverflowError) as fault:
        raise Failure(
            f"cluster.name_resolve: another program has written {value[:MAX_SHOWN]!r} under a name of this run; remove "
            "that entry, or start a trial of another name"
        ) from fault
