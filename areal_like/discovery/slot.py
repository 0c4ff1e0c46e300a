"""The files of one entry: a claim, which says who holds the name, and the state that its owner renews.

A claim appears by a hard link, which fails where there is one, so that of many processes exactly one adds it. It never
changes. The state bears the claim's id, so only its owner ever writes it: whoever is late overwrites nothing of
somebody else's.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote
from uuid import uuid4

import orjson
from xxhash import xxh3_64_hexdigest

from areal_like.discovery.owner import OwnerProcess

CLAIM, STATE, NEW, MARK = "@entry", ".state-", ".new-", ".removing-"
MAX_PART_CHARS = 120
STALE_TRIES = 5


class Claim(NamedTuple):
    """Who holds a name, and for how long its counter may stand still.

    `owner` is None where the file cannot be read; `process` then says why.
    """

    id: str
    name: str
    owner: OwnerProcess | None
    process: str
    since: str
    ttl_s: float

    def __str__(self) -> str:
        if self.owner is None:
            return f"an entry that cannot be read ({self.process})"
        return f"process {self.owner.pid} ({self.process}) on host {self.owner.host} since {self.since}"


class EntryState(NamedTuple):
    """The counter moves as long as the owner lives."""

    counter: int
    value: str


class HeldEntry(NamedTuple):
    """An entry as it was found. Where it has no state, `trouble` says why."""

    claim: Claim
    state: EntryState | None
    trouble: str = ""


class EntryFiles:
    """Where the files of one name stand."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self.path = folder, path

    def read(self) -> HeldEntry | None:
        claim = read_claim(self.path)
        if claim is None:
            # A network file system remembers for a while that a file was not there; listing the folder makes it look.
            with suppress(OSError), os.scandir(self.folder) as listing:
                next(listing, None)
            claim = read_claim(self.path)
        if claim is None or claim.owner is None:
            return None if claim is None else HeldEntry(claim, None, claim.process)
        try:
            return HeldEntry(claim, self._read_state(claim.id))
        except (OSError, ValueError, TypeError) as trouble:
            return HeldEntry(claim, None, f"{self.folder / (STATE + claim.id)}: {trouble}")

    def _read_state(self, id: str) -> EntryState:
        content = _read(self.folder / (STATE + id))
        if content is None:
            raise FileNotFoundError("there is no such file")
        state = EntryState(**orjson.loads(content))
        if not isinstance(state.counter, int) or not isinstance(state.value, str):
            raise ValueError(f"it holds {content[:80]!r}")
        return state

    def write(self, id: str, state: EntryState) -> None:
        """The state at once, as readers see it."""
        new = _write(self.folder, state._asdict())
        os.replace(new, self.folder / (STATE + id))

    def hold(self, claim: Claim) -> bool:
        """Whether the name is now held by that claim; False where another one is there."""
        new = _write(self.folder, {**claim._asdict(), "owner": claim.owner._asdict() if claim.owner else None})
        try:
            os.link(new, self.path)
        except FileExistsError:
            # Over a network an answer may get lost and the question be asked again: then it is this very claim.
            there = read_claim(self.path)
            return there is not None and there.id == claim.id
        finally:
            new.unlink(missing_ok=True)
        return True

    def mark(self, id: str) -> "EntryFiles":
        """Who removes that claim holds this slot meanwhile: see `FileNames`."""
        return EntryFiles(self.folder, self.folder / (MARK + id))

    def forget(self, id: str) -> None:
        """Removes the state of a claim that is no more."""
        (self.folder / (STATE + id)).unlink(missing_ok=True)


def read_claim(path: Path) -> Claim | None:
    """None where there is no such file."""
    try:
        content = _read(path)
        if content is None:
            return None
        said = orjson.loads(content)
        claim = Claim(**{**said, "owner": OwnerProcess(**said["owner"])})
        if claim.id.isalnum():
            return claim
        return _unreadable(path, f"its id is {claim.id!r}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as trouble:
        return _unreadable(path, str(trouble))


def _unreadable(path: Path, why: str) -> Claim | None:
    """Stands for a file known by nothing but itself; a rename does not change it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return Claim("unreadable", path.name, None, why, "", 0.0)
    return Claim(f"unreadable{found.st_ino}x{found.st_mtime_ns}", path.name, None, why, "", 0.0)


def _read(path: Path) -> bytes | None:
    """A file that is replaced while it is read over a network answers that it is stale; then there is a newer one."""
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
    """A new file, readable by its user alone."""
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
    """Not always this process's user: a network file system may give what it makes to another one."""
    new = _write(folder, None)
    try:
        return new.stat().st_uid
    finally:
        new.unlink()


def file_part(part: str) -> str:
    """The part of a name as that of a path: what may mean something there is quoted, what is too long cut."""
    quoted = quote(part, safe="+=,")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) > MAX_PART_CHARS:
        return f"{quoted[: MAX_PART_CHARS - 20]}%~{xxh3_64_hexdigest(part.encode())}"
    return quoted
