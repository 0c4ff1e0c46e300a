"""Files of one entry: the claim, which names the owner, and the state that the owner renews; whether the owner is dead,
and the removal of a dead entry.

A claim is created by a hard link, which fails if one exists, so that exactly one process succeeds. It never changes.
The state's file name has the claim's id, so that only its owner writes it, and a late writer overwrites nothing."""

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote
from uuid import uuid4

import orjson
from xxhash import xxh3_64_hexdigest

from areal_like.discovery.base import Holder, name_parts
from areal_like.discovery.owner import OwnerProcess, is_alive, is_seen_here

CLAIM, STATE, NEW, MARK = "@entry", ".state-", ".new-", ".removing-"
MAX_PART_CHARS = 120
STALE_TRIES = 5
MAX_TRIES, PAUSE_S = 50, 0.02
PRIVATE, READABLE = 0o600, 0o644
"""Modes of the files."""


class Claim(NamedTuple):
    """Owner of a name, and for how long its counter may stand still. `owner` is None if the file cannot be read;
    `process` then states why."""

    id: str
    name: str
    owner: OwnerProcess | None
    process: str
    since: str
    """When the name was claimed, as SINCE_FORMAT, in the time zone of the owner."""
    ttl_s: float

    @property
    def holder(self) -> Holder:
        return Holder(self.owner, self.process, self.since)

    def __str__(self) -> str:
        return str(self.holder)


class EntryState(NamedTuple):
    """The owner increments the counter as long as it lives."""

    counter: int
    value: str


class HeldEntry(NamedTuple):
    """An entry as it was read. `error`: why it has no state."""

    claim: Claim
    state: EntryState | None
    error: str = ""


class EntryFiles:
    """Paths of the files of one name, and the mode of new ones."""

    def __init__(self, folder: Path, path: Path, mode: int = PRIVATE) -> None:
        self.folder, self.path, self.mode = folder, path, mode

    def read(self) -> HeldEntry | None:
        claim = read_claim(self.path)
        if claim is None:
            # A network file system caches that a file is missing; listing the folder refreshes it.
            with suppress(OSError), os.scandir(self.folder) as listing:
                next(listing, None)
            claim = read_claim(self.path)
        if claim is None or claim.owner is None:
            return None if claim is None else HeldEntry(claim, None, claim.process)
        try:
            return HeldEntry(claim, self._read_state(claim.id))
        except (OSError, ValueError, TypeError) as error:
            return HeldEntry(claim, None, f"{self.folder / (STATE + claim.id)}: {error}")

    def _read_state(self, id: str) -> EntryState:
        content = _read(self.folder / (STATE + id))
        if content is None:
            raise FileNotFoundError("there is no such file")
        state = EntryState(**orjson.loads(content))
        if not isinstance(state.counter, int) or not isinstance(state.value, str):
            raise ValueError(f"it holds {content[:80]!r}")
        return state

    def write(self, id: str, state: EntryState) -> None:
        """Replaces the state atomically."""
        new = _write(self.folder, state._asdict(), self.mode)
        os.replace(new, self.folder / (STATE + id))

    def hold(self, claim: Claim) -> bool:
        """Creates the claim; False if the name has another one."""
        owner = claim.owner._asdict() if claim.owner else None
        new = _write(self.folder, {**claim._asdict(), "owner": owner}, self.mode)
        try:
            os.link(new, self.path)
        except FileExistsError:
            # A network file system may repeat a request whose reply was lost: then this claim exists already.
            there = read_claim(self.path)
            return there is not None and there.id == claim.id
        finally:
            new.unlink(missing_ok=True)
        return True

    def mark(self, id: str) -> "EntryFiles":
        """The remover of that claim holds this slot meanwhile: see `remove`."""
        return EntryFiles(self.folder, self.folder / (MARK + id), self.mode)

    def forget(self, id: str) -> None:
        """Removes the state of a removed claim."""
        (self.folder / (STATE + id)).unlink(missing_ok=True)


def read_name_claim(root: Path, prefix: str, name: str) -> Claim | None:
    """The claim of a name below a root."""
    *above, leaf = map(file_part, [*name_parts(prefix), *name_parts(name)])
    return read_claim(root.joinpath(*above, leaf + CLAIM))


def read_claim(path: Path) -> Claim | None:
    """None if there is no such file."""
    try:
        content = _read(path)
        if content is None:
            return None
        fields = orjson.loads(content)
        claim = Claim(**{**fields, "owner": OwnerProcess(**fields["owner"])})
        if claim.id.isalnum():
            return claim
        return _unreadable(path, f"its id is {claim.id!r}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return _unreadable(path, str(error))


def _unreadable(path: Path, why: str) -> Claim | None:
    """A claim for a file that cannot be parsed, identified by its inode and time."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return Claim("unreadable", path.name, None, why, "", 0.0)
    return Claim(f"unreadable{state.st_ino}x{state.st_mtime_ns}", path.name, None, why, "", 0.0)


def _read(path: Path) -> bytes | None:
    """Reads again on ESTALE: over a network that means the file was replaced while it was read."""
    for tries in range(1, STALE_TRIES + 1):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ESTALE or tries == STALE_TRIES:
                raise
    raise AssertionError


def _write(folder: Path, content: object, mode: int = PRIVATE) -> Path:
    """A new file."""
    new = folder / f"{NEW}{uuid4().hex}"
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(orjson.dumps(content))
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return new


class HeartbeatCounters:
    """Counters of other processes' entries, and when they moved by this process's clock: clocks of two hosts are never
    compared."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int | None, float]] = {}

    def unchanged_s(self, id: str, counter: int | None) -> float:
        """For how long that entry's counter is known not to have moved: 0 when first seen. A counter that cannot be
        read now is None, and changes nothing."""
        with self._lock:
            now = self._clock()
            before = self._seen.get(id)
            if before is None or counter not in (before[0], None):
                self._seen[id] = (counter, now)
                return 0.0
            return now - before[1]


class Liveness:
    """Checks the process itself if it runs on this machine, otherwise its counter."""

    def __init__(self, me: OwnerProcess, ttl_s: float) -> None:
        self._me, self._ttl_s = me, ttl_s
        self._counters = HeartbeatCounters()

    def why_dead(self, held: HeldEntry) -> str | None:
        """Why the owner counts as dead; None if it is alive, or that is not known yet."""
        owner = held.claim.owner
        if owner is not None and self.is_local(held):
            return None if is_alive(owner) is not False else "that process has ended"
        counter = None if held.state is None else held.state.counter
        unchanged_s = self._counters.unchanged_s(held.claim.id, counter)
        return f"its counter stood still for {unchanged_s:.0f} s" if unchanged_s >= self.ttl_of(held) else None

    def is_local(self, held: HeldEntry) -> bool:
        return is_seen_here(held.claim.owner, self._me)

    def ttl_of(self, held: HeldEntry) -> float:
        """The longer one of this process's and the owner's ttl."""
        return max(self._ttl_s, held.claim.ttl_s)


def has_moved(before: HeldEntry | None, now: HeldEntry) -> bool:
    """Whether the entry has changed between two reads, so that its owner is alive."""
    if before is None:
        return False
    if before.claim.id != now.claim.id:
        return True
    return before.state is not None and now.state is not None and before.state != now.state


def remove(slot: EntryFiles, id: str, liveness: Liveness, sign: Callable[[], Claim]) -> Claim | None:
    """Removes the entry with that id, and never another one that took its place. Returns the claim of another process
    that has been removing it for long, if any. `sign` makes a new claim of this process.

    Two processes that both see a dead entry must not remove the living entry that the faster one puts there. So the
    remover first adds a mark with the entry's id, and then reads the entry again. The mark of a dead remover is void by
    the same rule, and removed in the same way.
    """
    mark = slot.mark(id)
    for _ in range(MAX_TRIES):
        try:
            is_marked = mark.hold(sign())
        except FileNotFoundError:
            return None  # the entry was removed with its folder
        if is_marked:
            try:
                held = slot.read()
                if held is not None and held.claim.id == id:
                    slot.path.unlink(missing_ok=True)
                    slot.forget(id)
            finally:
                mark.path.unlink(missing_ok=True)
            return None
        if not remove_if_dead(mark, liveness, sign):
            time.sleep(PAUSE_S)
    remover = mark.read()
    return None if remover is None else remover.claim


def remove_if_dead(slot: EntryFiles, liveness: Liveness, sign: Callable[[], Claim]) -> bool:
    """Whether there is no entry (any more)."""
    held = slot.read()
    if held is None:
        return True
    return liveness.why_dead(held) is not None and remove(slot, held.claim.id, liveness, sign) is None


def user_of_new_files(folder: Path) -> int:
    """Owner of new files in the folder: a network file system may map this process's user to another one."""
    new = _write(folder, None)
    try:
        return new.stat().st_uid
    finally:
        new.unlink()


def file_part(part: str) -> str:
    """A part of a name as a file name: special characters are quoted, long parts are cut."""
    quoted = quote(part, safe="+=,")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) > MAX_PART_CHARS:
        return f"{quoted[: MAX_PART_CHARS - 20]}%~{xxh3_64_hexdigest(part.encode())}"
    return quoted


def remove_empty_folders(root: Path, folder: Path) -> None:
    """Removes the folder and its parents below the root, up to the first that is not empty."""
    while folder != root:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.parent
