"""Files of one entry: the claim, which names the owner, and the state that the owner renews.

A claim is created by a hard link, which fails if one exists, so that exactly one process succeeds. It never changes.
The state's file name has the claim's id, so that only its owner writes it, and a late writer overwrites nothing."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote
from uuid import uuid4

import orjson
from xxhash import xxh3_64_hexdigest

from areal_like.discovery.base import Holder, name_parts
from areal_like.discovery.owner import OwnerProcess

CLAIM, STATE, NEW, MARK = "@entry", ".state-", ".new-", ".removing-"
MAX_PART_CHARS = 120
STALE_TRIES = 5


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
    """Paths of the files of one name."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self.path = folder, path

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
        new = _write(self.folder, state._asdict())
        os.replace(new, self.folder / (STATE + id))

    def hold(self, claim: Claim) -> bool:
        """Creates the claim; False if the name has another one."""
        new = _write(self.folder, {**claim._asdict(), "owner": claim.owner._asdict() if claim.owner else None})
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
        """The remover of that claim holds this slot meanwhile: see `files.remove`."""
        return EntryFiles(self.folder, self.folder / (MARK + id))

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


def _write(folder: Path, content: object) -> Path:
    """A new file, readable by its user only."""
    new = folder / f"{NEW}{uuid4().hex}"
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(orjson.dumps(content))
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return new


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
