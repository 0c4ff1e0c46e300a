"""Name store in etcd. `areal-like/{user}/{experiment}/{trial}/server/0` is the key of the entry `server/0`.

All entries of a process belong to one lease, which a thread keeps alive: they end with it. The thread also notices that
the lease is gone, as after a restart of etcd without its data, and enters the names again. While etcd does not answer,
the entries that were read last count: that says nothing of the processes.
"""

import logging
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import orjson

from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.cluster import NameResolveConfig
from areal_like.discovery.base import (
    LONGEST_PAUSE_S,
    SINCE_FORMAT,
    Holder,
    NameMissing,
    NameStore,
    NameTaken,
    check_holder,
    name_parts,
    printable,
    sorted_entries,
)
from areal_like.discovery.etcd_client import ADDRESS_KEY, RETRY_S, ROOT, EtcdClient, EtcdUnreachable, LeaseLost
from areal_like.discovery.owner import OwnerProcess, is_alive, is_seen_here, this_process
from areal_like.process.errors import Failure
from areal_like.process.wait import NamedWait

HISTORY_S = 0.5
"""etcd sends earlier changes of a key at once."""
ROUNDED_S = 2.0
"""etcd states what is left of a lease in whole seconds, and ends leases twice in a second."""

log = logging.getLogger(__name__)


class _LeasedEntry(NamedTuple):
    """An entry of this process. Its id differs from that of every other entry."""

    key: bytes
    id: str
    value: str
    since: str
    revision: int = 0
    """That of its last change."""
    lease: int = 0


class _KeyEntry(NamedTuple):
    """An entry as it was read; one that nothing here wrote has no id."""

    key: bytes
    id: str
    value: str
    holder: Holder
    lease: int
    revision: int


class EtcdNameStore(NameStore):
    """`owner`: this process's name in the run, shown in messages."""

    def __init__(self, section: NameResolveConfig, cwd: Path, prefix: str, owner: str) -> None:
        super().__init__(prefix)
        self._client, self._owner, self._ttl_s = EtcdClient(section, cwd), owner, section.ttl_s
        self._rpc = self._client.rpc
        self._me = this_process()
        self._own: dict[str, _LeasedEntry] = {}
        self._known: dict[str, str] = {}
        self._lease = self._revision = 0
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._renewing: threading.Thread | None = None

    def check(self) -> None:
        try:
            list(self._below(""))
        except EtcdUnreachable as fault:
            raise ConfigError([Problem(ADDRESS_KEY, fault.why)]) from None

    def add(self, name: str, value: str, replace: bool = False, waiting: NamedWait | None = None) -> None:
        assert not self._stopped.is_set(), "the name store is closed"
        ends = time.monotonic() + self._ttl_s
        while True:
            try:
                return self._add(name, value, replace, waiting)
            except EtcdUnreachable:
                if time.monotonic() > ends:
                    raise
                time.sleep(RETRY_S)

    def _add(self, name: str, value: str, replace: bool, waiting: NamedWait | None) -> None:
        key = self._key(name)
        with self._lock:
            own = self._own.get(name)
            held = self._read(key) if own else None
            if own is not None and held is not None and held.id == own.id:
                if not replace:
                    raise NameTaken(self.full(name), f"this very process, {held.holder}")
                if (new := self._put(own._replace(value=value), held.revision)) is not None:
                    self._own[name] = new
                    return
        new = _LeasedEntry(key, uuid4().hex, value, time.strftime(SINCE_FORMAT))
        new = self._obtain(name, new, waiting)
        with self._lock:
            self.lost.pop(name, None)
            self._own[name] = new
            if self._renewing is None:
                self._renewing = threading.Thread(target=self._renew_all, name="names", daemon=True)
                self._renewing.start()

    def _obtain(self, name: str, own: _LeasedEntry, waiting: NamedWait | None) -> _LeasedEntry:
        """Takes the name, also from a dead owner."""
        watched: _KeyEntry | None = None
        left_s, ends = math.inf, 0.0
        while (new := self._put(own, 0)) is None:
            held = self._read(own.key)
            if held is None:
                continue
            if held.id == own.id:
                return own._replace(revision=held.revision)  # only the answer was lost
            if (why_dead := self._why_dead(held)) is not None:
                if (new := self._put(own, held.revision)) is not None:
                    log.info("took over the name %s from %s: %s", self.full(name), held.holder, why_dead)
                    return new
                continue
            if waiting is None or self._is_local(held):
                raise NameTaken(self.full(name), str(held.holder))
            lease = self._client.call("Lease", "LeaseTimeToLive", self._rpc.LeaseTimeToLiveRequest(ID=held.lease))
            if watched is None:
                message = "the name %s is held by %s; taking it over if it is not renewed for %d s"
                log.info(message, self.full(name), held.holder, lease.TTL)
                watched, ends = held, time.monotonic() + lease.grantedTTL + ROUNDED_S
            if held.id != watched.id or left_s < lease.TTL or (held.lease and time.monotonic() > ends):
                raise NameTaken(self.full(name), f"{held.holder}, which is alive")
            left_s = min(left_s, lease.TTL)
            waiting.check()
            self._pause(name, 0.0)
        return new

    def get(self, name: str) -> str:
        self._key(name)
        entries, missing = self._find(name)
        if name not in entries:
            raise NameMissing(self.full(name), *filter(None, [missing.get(name, missing.get(""))]))
        return entries[name]

    def find(self, prefix: str = "") -> dict[str, str]:
        return self._find(prefix)[0]

    def _find(self, prefix: str) -> tuple[dict[str, str], dict[str, str]]:
        """The living entries at and below a name; and by name why an entry does not count, under "" for all."""
        entries, dead = {}, {}
        try:
            for held in self._below(prefix):
                name = held.key.decode(errors="replace")[len(f"{ROOT}/{self.full('x')}") - 1 :]
                if (why_dead := self._why_dead(held)) is not None:
                    dead[name] = f"it was held by {held.holder}: {why_dead}"
                elif not held.id:
                    dead[name] = f"its value cannot be read: {held.holder.process}"
                else:
                    entries[name] = held.value
        except EtcdUnreachable as fault:
            known = self._known | {name: own.value for name, own in list(self._own.items())}
            return sorted_entries({name: known[name] for name in known if _is_below(prefix, name)}), {"": str(fault)}
        self._known = {name: value for name, value in self._known.items() if not _is_below(prefix, name)} | entries
        return sorted_entries(entries), dead

    def holder(self, name: str) -> Holder | None:
        held = self._read(self._key(name))
        return held.holder if held is not None and self._why_dead(held) is None else None

    def delete(self, name: str) -> None:
        with self._lock:
            self._own.pop(name, None)
            try:
                held = self._read(self._key(name))
                if held is None:
                    raise NameMissing(self.full(name))
                self._remove(held)
            except EtcdUnreachable as fault:
                log.warning("the entry %s stays for its time to live: %s", self.full(name), fault)

    def clear(self, prefix: str = "") -> None:
        with self._lock:
            mine = {own.id for own in self._own.values()}
            try:
                for held in self._below(prefix):
                    if held.id not in mine:
                        self._remove(held)
            except EtcdUnreachable as fault:
                log.warning("the entries below %s stay for their time to live: %s", self.full(prefix), fault)

    def close(self) -> None:
        self._stopped.set()
        if self._renewing is not None:
            self._renewing.join()
        with self._lock:
            self._own.clear()
            lease, self._lease = self._lease, 0
            if lease:
                try:
                    self._client.call("Lease", "LeaseRevoke", self._rpc.LeaseRevokeRequest(ID=lease))
                except LeaseLost:
                    log.debug("the lease of %s is gone already", self._owner)
                except Failure as fault:
                    log.warning("the entries of %s end with their time to live: %s", self._owner, fault)
        self._client.close()

    # --- the lease

    def _renew_all(self) -> None:
        pause_s = self._ttl_s / 3
        while not self._stopped.wait(pause_s):
            pause_s = self._ttl_s / 3
            try:
                with self._lock:
                    self._renew()
            except EtcdUnreachable:
                pause_s = min(pause_s, RETRY_S)  # the client has logged it
            except (Failure, ConfigError) as fault:
                log.warning("the entries of %s could not be renewed: %s", self._owner, fault)

    def _renew(self) -> None:
        """Renews the lease, then checks that the entries still exist; enters those again whose lease is gone."""
        if self._lease and not self._is_renewed():
            log.warning("etcd has no lease of %s any more; entering its names again", self._owner)
            self._lease = 0
        for name, own in list(self._own.items()):
            if own.lease != self._lease and not self._was_taken(own) and (new := self._put(own, 0)) is not None:
                self._own[name] = new
            else:
                self._check_held(name, own)

    def _is_renewed(self) -> bool:
        request = self._rpc.LeaseKeepAliveRequest(ID=self._lease)
        try:
            return bool(self._client.call("Lease", "LeaseKeepAlive", request).TTL)
        except LeaseLost:
            return False

    def _was_taken(self, own: _LeasedEntry) -> bool:
        """Whether another process entered the name since, even if it has left it again."""
        changes = self._client.changes(own.key, b"", own.revision + 1, HISTORY_S)
        return any(change.type == change.PUT for change in changes)

    def _check_held(self, name: str, own: _LeasedEntry) -> None:
        held = self._read(own.key)
        if held is not None and held.id == own.id:
            self._own[name] = own._replace(revision=held.revision, lease=held.lease)
            return
        self.lost[name] = f"it is held by {held.holder}" if held else "its entry was removed"
        log.error("the entry %s is lost: %s", self.full(name), self.lost[name])
        del self._own[name]

    # --- keys

    def _put(self, own: _LeasedEntry, revision: int) -> _LeasedEntry | None:
        """Writes an entry if its key was last changed in this revision, 0: if there is none. None if it was not."""
        content = {"id": own.id, "value": own.value, "process": self._owner, "since": own.since}
        value = orjson.dumps({**content, "owner": self._me._asdict()})
        for _ in range(2):
            with self._lock:
                if not self._lease:
                    granted = self._rpc.LeaseGrantRequest(TTL=math.ceil(self._ttl_s))
                    self._lease = self._client.call("Lease", "LeaseGrant", granted).ID
                lease = self._lease
            put = self._rpc.PutRequest(key=own.key, value=value, lease=lease)
            try:
                new = self._swap(own.key, revision, self._rpc.RequestOp(request_put=put))
                return own._replace(revision=new, lease=lease) if new else None
            except LeaseLost:
                with self._lock:
                    self._lease = 0 if self._lease == lease else self._lease
        return None

    def _remove(self, held: _KeyEntry) -> None:
        """Removes this entry, and never another one that took its place."""
        deleted = self._rpc.DeleteRangeRequest(key=held.key)
        self._swap(held.key, held.revision, self._rpc.RequestOp(request_delete_range=deleted))

    def _swap(self, key: bytes, revision: int, operation: Any) -> int:
        """The revision of the change, 0 if there was none."""
        compare = self._rpc.Compare(
            result=self._rpc.Compare.EQUAL, target=self._rpc.Compare.MOD, key=key, mod_revision=revision
        )
        answer = self._client.call("KV", "Txn", self._rpc.TxnRequest(compare=[compare], success=[operation]))
        return int(answer.header.revision) if answer.succeeded else 0

    def _read(self, key: bytes) -> _KeyEntry | None:
        found = self._client.call("KV", "Range", self._rpc.RangeRequest(key=key)).kvs
        return _parse(found[0]) if found else None

    def _below(self, prefix: str) -> Iterator[_KeyEntry]:
        """The entry of that name and all entries below it."""
        top, end = self._range(prefix)
        answer = self._client.call("KV", "Range", self._rpc.RangeRequest(key=top, range_end=end))
        self._revision = answer.header.revision
        for found in answer.kvs:
            if found.key == top or found.key.startswith(top + b"/"):
                yield _parse(found)

    def _pause(self, prefix: str, pause_s: float) -> float:
        """Ends as soon as an entry changes."""
        self._client.changes(*self._range(prefix), self._revision + 1, LONGEST_PAUSE_S)
        return pause_s

    def _range(self, prefix: str) -> tuple[bytes, bytes]:
        """Keys from a name to the last one below it, and some beside it: `0` follows the slash."""
        top = "/".join([ROOT, *name_parts(self.full(prefix))]).encode()
        return top, top + b"0"

    def _key(self, name: str) -> bytes:
        if not name_parts(name):
            raise ValueError("a name must not be empty")
        return self._range(name)[0]

    def _is_local(self, held: _KeyEntry) -> bool:
        return is_seen_here(held.holder.owner, self._me)

    def _why_dead(self, held: _KeyEntry) -> str | None:
        """Why its owner is dead, as far as this machine can tell; what is left of others ends with the lease."""
        owner = held.holder.owner
        return "that process has ended" if owner and self._is_local(held) and is_alive(owner) is False else None


def _is_below(prefix: str, name: str) -> bool:
    return not prefix or f"{name}/".startswith(f"{prefix}/")


def _parse(found: Any) -> _KeyEntry:
    """Others may write these keys, so nothing is assumed of the value."""
    try:
        content = orjson.loads(found.value)
        holder = Holder(OwnerProcess(**content["owner"]), content["process"], content["since"])
        check_holder(holder)
        if not (isinstance(content["id"], str) and isinstance(content["value"], str)):
            raise ValueError("its id or value is not a text")
        return _KeyEntry(found.key, content["id"], content["value"], holder, found.lease, found.mod_revision)
    except (ValueError, TypeError, KeyError) as error:
        return _KeyEntry(found.key, "", "", Holder(None, printable(error), ""), found.lease, found.mod_revision)
