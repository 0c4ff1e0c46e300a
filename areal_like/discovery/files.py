"""Names as plain files in a folder that all processes see: links and renames, no locks.

`{root}/{user}/{experiment}/{trial}/server/0@entry` is the entry `server/0`. A heartbeat renews what was added here. An
entry whose process has ended is void: at once where it ran on this machine since this boot, so that one can see it, and
otherwise when its counter has not moved for `ttl_s` seconds of the watcher's own clock.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from uuid import uuid4

from areal_like.discovery.base import NameMissing, NameStore, NameTaken, name_parts, sorted_entries
from areal_like.discovery.folders import make_folders, remove_empty_folders, shut_folders
from areal_like.discovery.liveness import Liveness, has_moved
from areal_like.discovery.owner import this_process
from areal_like.discovery.removal import remove, remove_if_dead
from areal_like.discovery.slot import CLAIM, MARK, NEW, STATE, Claim, EntryFiles, EntryState, HeldEntry, file_part
from areal_like.process.errors import Failure
from areal_like.process.wait import NamedWait

ROOT_KEY = "cluster.name_resolve.nfs_record_root"
MOST_TRIES = 50

log = logging.getLogger(__name__)


@dataclass
class _Own:
    """An entry that was added here."""

    slot: EntryFiles
    claim: Claim
    state: EntryState


class FileNameStore(NameStore):
    """`owner` is what this process is called in the run, for the words that others read."""

    def __init__(self, root: Path, prefix: str, owner: str, ttl_s: float) -> None:
        super().__init__(prefix)
        self._root, self._owner, self._ttl_s = root, owner, ttl_s
        self._base = root.joinpath(*map(file_part, name_parts(prefix)))
        self._me = this_process()
        self._judge = Liveness(self._me, ttl_s)
        self._told: set[str] = set()
        self._own: dict[str, _Own] = {}
        self._guard = threading.RLock()
        self._stopped = threading.Event()
        self._heart: threading.Thread | None = None
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            make_folders(root, self._base)
            shut_folders(root, self._base)
        except OSError as error:
            raise _unusable(error) from error

    def add(self, name: str, value: str, replace: bool = False, waiting: NamedWait | None = None) -> None:
        assert not self._stopped.is_set(), "these names are closed"
        slot = self._slot(name)
        new = _Own(slot, self._sign(name), EntryState(1, value))
        try:
            with self._guard:
                own = self._own.get(name)
                if own is not None and self._is_held(own):
                    if not replace:
                        raise NameTaken(self.full(name), f"this very process, {own.claim}")
                    own.state = own.state._replace(value=value)
                    own.slot.write(own.claim.id, own.state)
                    return
            self._obtain(new, waiting)
        except OSError as error:
            raise _unusable(error) from error
        with self._guard:
            self.lost.pop(name, None)
            self._own[name] = new
            if own is not None:
                slot.forget(own.claim.id)
            if self._heart is None:
                self._heart = threading.Thread(target=self._beat, name="names", daemon=True)
                self._heart.start()

    def _obtain(self, own: _Own, waiting: NamedWait | None) -> None:
        """Holds the name, after one whose owner is dead where need be."""
        watched: HeldEntry | None = None
        try:
            for tries in count(1):
                held = own.slot.read()
                if held is None:
                    if self._try_to_hold(own):
                        return
                    if tries > MOST_TRIES:
                        raise FileExistsError(f"{own.slot.path} is there, and not to be seen")
                    continue
                why_dead = self._judge.why_dead(held)
                if why_dead is not None:
                    remover = self._remove(own.slot, held.claim.id)
                    if remover is not None:
                        raise NameTaken(own.claim.name, f"{remover}, which removes an entry of {held.claim}")
                    log.info("taking over the name %s from %s: %s", own.claim.name, held.claim, why_dead)
                    continue
                if waiting is None or self._judge.is_local(held) or has_moved(watched, held):
                    raise NameTaken(own.claim.name, f"{held.claim}{'' if watched is None else ', which is alive'}")
                if watched is None:
                    said = "the name %s is held by %s; taking it over if its counter does not move within %g s"
                    log.info(said, own.claim.name, held.claim, self._judge.ttl_of(held))
                if watched is None or watched.state is None:
                    watched = held
                waiting.check()
                time.sleep(min(self._ttl_s / 20, 0.5))
        except BaseException:
            own.slot.forget(own.claim.id)
            raise

    def _try_to_hold(self, own: _Own) -> bool:
        for _ in range(MOST_TRIES):
            try:
                make_folders(self._root, own.slot.folder)
                own.slot.write(own.claim.id, own.state)
                return own.slot.hold(own.claim)
            except FileNotFoundError:
                continue  # who left last has removed the empty folder meanwhile
        raise FileNotFoundError(f"{own.slot.folder} vanishes as often as it is made")

    def get(self, name: str) -> str:
        held = self._slot(name).read()
        if held is None:
            raise NameMissing(self.full(name))
        if (why_dead := self._judge.why_dead(held)) is not None:
            raise NameMissing(self.full(name), f"it was held by {held.claim}: {why_dead}")
        if held.state is None:
            raise NameMissing(self.full(name), f"its value cannot be read: {held.trouble}")
        return held.state.value

    def find(self, prefix: str = "") -> dict[str, str]:
        found: dict[str, str] = {}
        skip = len(self.full("x")) - 1
        for _, held in self._below(prefix):
            if self._judge.why_dead(held) is not None:
                continue
            if held.state is not None:
                found[held.claim.name[skip:]] = held.state.value
            elif held.claim.id not in self._told:
                self._told.add(held.claim.id)
                log.warning("an entry below %s cannot be read: %s", self.full(prefix), held.trouble)
        return sorted_entries(found)

    def delete(self, name: str) -> None:
        slot = self._slot(name)
        with self._guard:
            self._own.pop(name, None)
            held = slot.read()
            if held is None:
                raise NameMissing(self.full(name))
            self._remove(slot, held.claim.id)
        remove_empty_folders(self._root, slot.folder)

    def clear(self, prefix: str = "") -> None:
        with self._guard:
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
                        remove_if_dead(EntryFiles(Path(folder), Path(folder, file)), self._judge, self._sign)
                remove_empty_folders(self._root, Path(folder))

    def close(self) -> None:
        self._stopped.set()
        if self._heart is not None:
            self._heart.join(self._ttl_s)
            if self._heart.is_alive():
                log.warning("%s does not answer; the entries there end with this process", self._base)
                return
        for own in self._own.values():
            try:
                self._remove(own.slot, own.claim.id)
            except OSError as error:
                log.warning("the entry %s stays until this process ends: %s", own.claim.name, error)
            remove_empty_folders(self._root, own.slot.folder)
        self._own.clear()
        remove_empty_folders(self._root, self._base)

    def _beat(self) -> None:
        while not self._stopped.wait(self._ttl_s / 3):
            for name in list(self._own):
                with self._guard:
                    own = self._own.get(name)
                    if own is None:
                        continue
                    try:
                        self._renew(name, own)
                    except OSError as error:
                        log.warning("the entry %s could not be looked after: %s", own.claim.name, error)

    def _renew(self, name: str, own: _Own) -> None:
        """Moves the counter, and looks whether the entry is still there: in this order, as the look is what counts."""
        own.state = own.state._replace(counter=own.state.counter + 1)
        trouble: OSError | None = None
        try:
            own.slot.write(own.claim.id, own.state)
        except OSError as error:
            trouble = error
        if self._is_held(own):
            if trouble is not None:
                log.warning("the entry %s could not be renewed, which is tried again: %s", own.claim.name, trouble)
            return
        held = own.slot.read()
        self.lost[name] = f"it is held by {held.claim}" if held else "its entry was removed"
        log.error("the entry %s is lost: %s", own.claim.name, self.lost[name])
        del self._own[name]
        own.slot.forget(own.claim.id)

    def _is_held(self, own: _Own) -> bool:
        """What cannot be read now is nobody else's yet."""
        held = own.slot.read()
        return held is not None and (held.claim.id == own.claim.id or held.claim.owner is None)

    def _slot(self, name: str) -> EntryFiles:
        if not name_parts(name):
            raise ValueError("a name must not be empty")
        *above, leaf = map(file_part, name_parts(name))
        folder = self._base.joinpath(*above)
        return EntryFiles(folder, folder / (leaf + CLAIM))

    def _sign(self, name: str = "") -> Claim:
        """A new claim of this process; those of removals have no name."""
        since = time.strftime("%Y-%m-%d %H:%M:%S %z")
        return Claim(uuid4().hex, self.full(name), self._me, self._owner, since, self._ttl_s)

    def _remove(self, slot: EntryFiles, id: str) -> Claim | None:
        remover = remove(slot, id, self._judge, self._sign)
        if remover is not None:
            log.warning("%s stays, as it is about to be removed by %s", slot.path, remover)
        return remover

    def _below(self, prefix: str) -> Iterator[tuple[EntryFiles, HeldEntry]]:
        """The entry of that name, and all in its subtree."""
        slots = [self._slot(prefix)] if prefix else []
        for folder, _, files in os.walk(self._base.joinpath(*map(file_part, name_parts(prefix)))):
            slots += [EntryFiles(Path(folder), Path(folder, file)) for file in files if file.endswith(CLAIM)]
        for slot in slots:
            held = slot.read()
            if held is not None:
                yield slot, held


def _unusable(error: OSError) -> Failure:
    return Failure(f"{ROOT_KEY}: {error}; name a folder on a disk with room, in which you can make files and links")
