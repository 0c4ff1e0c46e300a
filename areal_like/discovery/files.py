"""Name store in files of a shared folder; uses links and renames, no locks.

`{root}/{user}/{experiment}/{trial}/server/0@entry` is the entry `server/0`. A heartbeat renews this process's entries.
An entry is void once its process has ended: at once if that ran on this machine, otherwise when its counter has not
moved for `ttl_s` seconds of the observer's clock.
"""

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from uuid import uuid4

from areal_like.discovery.base import (
    SINCE_FORMAT,
    Holder,
    NameMissing,
    NameStore,
    NameTaken,
    name_parts,
    sorted_entries,
)
from areal_like.discovery.file_entry import (
    CLAIM,
    MARK,
    MAX_TRIES,
    NEW,
    PRIVATE,
    READABLE,
    STATE,
    Claim,
    EntryFiles,
    EntryState,
    HeldEntry,
    Liveness,
    file_part,
    has_moved,
    remove,
    remove_empty_folders,
    remove_if_dead,
    user_of_new_files,
)
from areal_like.discovery.owner import this_process
from areal_like.process.errors import Failure
from areal_like.process.wait import NamedWait

ROOT_KEY = "cluster.name_resolve.nfs_record_root"
FOLDER_MODE = 0o700
RETRY_LOCK_S = 1.0
"""For so long the lock of a store is waited for that has not answered before."""

log = logging.getLogger(__name__)


@dataclass
class _OwnEntry:
    """An entry of this process."""

    slot: EntryFiles
    claim: Claim
    state: EntryState


class UnusableFolder(Failure):
    """Names cannot be entered in this folder."""

    def __init__(self, error: OSError) -> None:
        remedy = "set it to a folder with free space where you can create files and links"
        super().__init__(f"{ROOT_KEY}: {error}; {remedy}")
        self.error = error


class FileNameStore(NameStore):
    """`owner`: this process's name in the run, shown in messages. Not `is_private`: other users may read entries."""

    def __init__(self, root: Path, prefix: str, owner: str, ttl_s: float, is_private: bool = True) -> None:
        super().__init__(prefix)
        self._root, self._owner, self._ttl_s, self._is_private = root, owner, ttl_s, is_private
        self._base = root.joinpath(*map(file_part, name_parts(prefix)))
        self._me = this_process()
        self._liveness = Liveness(self._me, ttl_s)
        self._reported: set[str] = set()
        self._own: dict[str, _OwnEntry] = {}
        self._lock = threading.RLock()
        self._is_silent = False
        self._stopped = threading.Event()
        self._heartbeat: threading.Thread | None = None
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            make_folders(root, self._base, is_private)
            if is_private:
                close_folders(root, self._base)
        except OSError as error:
            raise UnusableFolder(error) from error

    def add(self, name: str, value: str, replace: bool = False, waiting: NamedWait | None = None) -> None:
        assert not self._stopped.is_set(), "the name store is closed"
        slot = self._slot(name)
        new = _OwnEntry(slot, self._sign(name), EntryState(1, value))
        try:
            with self._lock:
                own = self._own.get(name)
                if own is not None and self._is_held(own):
                    if not replace:
                        raise NameTaken(self.full(name), f"this very process, {own.claim}")
                    own.state = own.state._replace(value=value)
                    own.slot.write(own.claim.id, own.state)
                    return
            self._obtain(new, waiting)
        except OSError as error:
            raise UnusableFolder(error) from error
        with self._lock:
            self.lost.pop(name, None)
            self._own[name] = new
            if own is not None:
                slot.forget(own.claim.id)
            if self._heartbeat is None:
                self._heartbeat = threading.Thread(target=self._renew_all, name="names", daemon=True)
                self._heartbeat.start()

    def _obtain(self, own: _OwnEntry, waiting: NamedWait | None) -> None:
        """Takes the name, also from a dead owner."""
        watched: HeldEntry | None = None
        try:
            for tries in count(1):
                held = own.slot.read()
                if held is None:
                    if self._try_to_hold(own):
                        return
                    if tries > MAX_TRIES:
                        raise FileExistsError(f"{own.slot.path} exists but cannot be read")
                    continue
                why_dead = self._liveness.why_dead(held)
                if why_dead is not None:
                    remover = self._remove(own.slot, held.claim.id)
                    if remover is not None:
                        raise NameTaken(own.claim.name, f"{remover}, which removes an entry of {held.claim}")
                    log.info("taking over the name %s from %s: %s", own.claim.name, held.claim, why_dead)
                    continue
                if waiting is None or self._liveness.is_local(held) or has_moved(watched, held):
                    raise NameTaken(own.claim.name, f"{held.claim}{'' if watched is None else ', which is alive'}")
                if watched is None:
                    message = "the name %s is held by %s; taking it over if its counter does not move within %g s"
                    log.info(message, own.claim.name, held.claim, self._liveness.ttl_of(held))
                if watched is None or watched.state is None:
                    watched = held
                waiting.check()
                time.sleep(min(self._ttl_s / 20, 0.5))
        except BaseException:
            own.slot.forget(own.claim.id)
            raise

    def _try_to_hold(self, own: _OwnEntry) -> bool:
        for _ in range(MAX_TRIES):
            try:
                make_folders(self._root, own.slot.folder, self._is_private)
                own.slot.write(own.claim.id, own.state)
                return own.slot.hold(own.claim)
            except FileNotFoundError:
                continue  # another process has removed the empty folder meanwhile
        raise FileNotFoundError(f"{own.slot.folder} is removed as often as it is created")

    def get(self, name: str) -> str:
        held = self._slot(name).read()
        if held is None:
            raise NameMissing(self.full(name))
        if (why_dead := self._liveness.why_dead(held)) is not None:
            raise NameMissing(self.full(name), f"it was held by {held.claim}: {why_dead}")
        if held.state is None:
            raise NameMissing(self.full(name), f"its value cannot be read: {held.error}")
        return held.state.value

    def find(self, prefix: str = "") -> dict[str, str]:
        entries: dict[str, str] = {}
        skip = len(self.full("x")) - 1
        for _, held in self._below(prefix):
            if self._liveness.why_dead(held) is not None:
                continue
            if held.state is not None:
                entries[held.claim.name[skip:]] = held.state.value
            elif held.claim.id not in self._reported:
                self._reported.add(held.claim.id)
                log.warning("an entry below %s cannot be read: %s", self.full(prefix), held.error)
        return sorted_entries(entries)

    def holder(self, name: str) -> Holder | None:
        held = self._slot(name).read()
        return held.claim.holder if held is not None and self._liveness.why_dead(held) is None else None

    def delete(self, name: str) -> None:
        slot = self._slot(name)
        with self._locked() as is_locked:
            if not is_locked:
                return
            self._own.pop(name, None)
            held = slot.read()
            if held is None:
                raise NameMissing(self.full(name))
            self._remove(slot, held.claim.id)
        remove_empty_folders(self._root, slot.folder)

    def clear(self, prefix: str = "") -> None:
        with self._locked() as is_locked:
            if not is_locked:
                return
            mine = {own.claim.id for own in self._own.values()}
            for slot, held in list(self._below(prefix)):
                if held.claim.id not in mine:
                    self._remove(slot, held.claim.id)
            top = self._base.joinpath(*map(file_part, name_parts(prefix)))
            for folder, _, files in os.walk(top, topdown=False):
                for file in files:
                    if file.startswith((NEW, STATE)) and file.removeprefix(STATE) not in mine:
                        (Path(folder) / file).unlink(missing_ok=True)
                    elif file.startswith(MARK):
                        remove_if_dead(EntryFiles(Path(folder), Path(folder, file)), self._liveness, self._sign)
                remove_empty_folders(self._root, Path(folder))

    def close(self) -> None:
        self._stopped.set()
        if self._heartbeat is not None:
            self._heartbeat.join(self._ttl_s)
            if self._heartbeat.is_alive():
                log.warning("%s does not respond; the entries there end with this process", self._base)
                return
        for own in self._own.values():
            try:
                self._remove(own.slot, own.claim.id)
            except OSError as error:  # a full disk is what the run reports
                level = logging.DEBUG if error.errno in (errno.ENOSPC, errno.EDQUOT) else logging.WARNING
                log.log(level, "the entry %s stays until this process ends: %s", own.claim.name, error)
            remove_empty_folders(self._root, own.slot.folder)
        self._own.clear()
        remove_empty_folders(self._root, self._base)

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether it is: on a disk that does not answer the heartbeat holds the lock for as long as its write hangs."""
        limit_s = min(self._ttl_s, RETRY_LOCK_S) if self._is_silent else self._ttl_s
        is_locked = self._lock.acquire(timeout=limit_s)
        if not is_locked and not self._is_silent:
            log.warning("%s has not answered for %g s; the entries there stay for now", self._base, limit_s)
        self._is_silent = not is_locked
        try:
            yield is_locked
        finally:
            if is_locked:
                self._lock.release()

    def _renew_all(self) -> None:
        while not self._stopped.wait(self._ttl_s / 3):
            for name in list(self._own):
                with self._lock:
                    own = self._own.get(name)
                    if own is None:
                        continue
                    try:
                        self._renew(name, own)
                    except OSError as error:
                        log.warning("the entry %s could not be renewed: %s", own.claim.name, error)

    def _renew(self, name: str, own: _OwnEntry) -> None:
        """Moves the counter, then checks that the entry still exists."""
        own.state = own.state._replace(counter=own.state.counter + 1)
        failure: OSError | None = None
        try:
            own.slot.write(own.claim.id, own.state)
        except OSError as error:
            failure = error
        if self._is_held(own):
            if failure is not None:
                log.warning("the entry %s could not be renewed; trying again: %s", own.claim.name, failure)
            return
        held = own.slot.read()
        self.lost[name] = f"it is held by {held.claim}" if held else "its entry was removed"
        log.error("the entry %s is lost: %s", own.claim.name, self.lost[name])
        del self._own[name]
        own.slot.forget(own.claim.id)

    def _is_held(self, own: _OwnEntry) -> bool:
        """An entry that cannot be read now counts as held."""
        held = own.slot.read()
        return held is not None and (held.claim.id == own.claim.id or held.claim.owner is None)

    def _slot(self, name: str) -> EntryFiles:
        if not name_parts(name):
            raise ValueError("a name must not be empty")
        *above, leaf = map(file_part, name_parts(name))
        folder = self._base.joinpath(*above)
        return EntryFiles(folder, folder / (leaf + CLAIM), PRIVATE if self._is_private else READABLE)

    def _sign(self, name: str = "") -> Claim:
        """A new claim of this process; claims of removals have no name."""
        since = time.strftime(SINCE_FORMAT)
        return Claim(uuid4().hex, self.full(name), self._me, self._owner, since, self._ttl_s)

    def _remove(self, slot: EntryFiles, id: str) -> Claim | None:
        remover = remove(slot, id, self._liveness, self._sign)
        if remover is not None:
            log.warning("%s stays: it is being removed by %s", slot.path, remover)
        return remover

    def _below(self, prefix: str) -> Iterator[tuple[EntryFiles, HeldEntry]]:
        """The entry of that name and all entries below it."""
        slots = [self._slot(prefix)] if prefix else []
        for folder, _, files in os.walk(self._base.joinpath(*map(file_part, name_parts(prefix)))):
            slots += [EntryFiles(Path(folder), Path(folder, file)) for file in files if file.endswith(CLAIM)]
        for slot in slots:
            held = slot.read()
            if held is not None:
                yield slot, held


def make_folders(root: Path, folder: Path, is_private: bool) -> None:
    """Creates the folder and its missing parents up to the root."""
    below_root = folder.relative_to(root).parts
    for depth in range(len(below_root) + 1):
        try:
            root.joinpath(*below_root[:depth]).mkdir(FOLDER_MODE if is_private else 0o777)
        except FileExistsError:
            continue


def close_folders(root: Path, folder: Path) -> None:
    """Closes the folders below the root to other users, who could enter wrong addresses, to which the run would send
    its token. The root itself may be shared."""
    user = user_of_new_files(folder)
    while True:
        state = folder.stat()
        if state.st_uid != user:
            raise PermissionError(f"{folder} belongs to another user (uid {state.st_uid})")
        if stat.S_IMODE(state.st_mode) & 0o077:
            folder.chmod(FOLDER_MODE)
        folder = folder.parent
        if root not in folder.parents:
            return
