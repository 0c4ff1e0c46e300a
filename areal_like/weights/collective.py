"""Broadcast group of one trainer rank and the server processes, for one transfer of weights after another.

Independent of torch.distributed's groups. Every bucket is one broadcast. Every wait polls whether the group was
aborted, so that no member hangs in a transfer that another one never joins.
"""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from areal_like.weights.errors import GroupBroken
from areal_like.weights.gloo_transfer import GlooTransfer
from areal_like.weights.group_member import GroupMember
from areal_like.weights.group_server import GroupServer, KeyValueStore
from areal_like.weights.group_store import GroupStore, RemoteKeyValueStore
from areal_like.weights.ipc_transfer import IpcTransfer
from areal_like.weights.nccl_transfer import NcclTransfer
from areal_like.weights.rendezvous import Rendezvous
from areal_like.weights.transfer import Transfer, TransferGroup
from areal_like.weights.transfer_path import GLOO, IPC, NCCL

log = logging.getLogger(__name__)

SOURCE = re.compile(r"\[[^\]]*\.(?:cc|cpp|h|hpp):\d+\]\s*")
KEY = "weights.broadcast.timeout_s"
HERE, GO, BROKEN = "here", "go", "broken"
PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02
CHECK_INTERVAL_S = 0.25
"""Interval of the check whether the group was aborted."""
CPU = torch.device("cpu")


TRANSFERS: dict[str, Callable[[TransferGroup], Transfer]] = {
    GLOO: GlooTransfer,
    NCCL: NcclTransfer,
    IPC: IpcTransfer,
}


class BroadcastHost:
    """Rendezvous of groups: listens in the trainer's process, on `host` only. Closing it ends all waits there."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self._lost_members: dict[str, str] = {}
        """Title of each open group -> the member that disconnected without leaving."""
        self._incomplete: set[str] = set()
        """Titles of open groups that a member has left."""
        self._registry = GroupServer(host, port, self._on_member_lost, self._on_member_left)
        self.port: int = self._registry.port

    def open(self, rendezvous: Rendezvous, device: torch.device = CPU) -> "BroadcastGroup":
        """Opens a group as its rank 0; returns at once: `join` waits for the others."""
        self._incomplete.intersection_update(self._lost_members)
        self._lost_members[rendezvous.title] = ""
        store = self._registry.open(rendezvous.title, rendezvous.group)
        return BroadcastGroup(rendezvous, 0, device, store, self._lost_members)

    def is_complete(self, group: "BroadcastGroup") -> bool:
        """Whether all members are still in a group that was opened here."""
        return self._lost_members.get(group.name) == "" and group.name not in self._incomplete

    def close(self) -> None:
        self._registry.close()

    def _on_member_lost(self, title: str, who: str) -> None:
        if self._lost_members.get(title) == "":
            self._lost_members[title] = f"{who} is gone"

    def _on_member_left(self, title: str, who: str) -> None:
        self._incomplete.add(title)


class BroadcastGroup:
    """One member of a group. Rank 0 sends and the others receive the same buckets in the same order. Every method
    raises GroupBroken when the group is aborted, when a member is gone, and after the timeout of a wait."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        rank: int,
        device: torch.device = CPU,
        store: KeyValueStore | Any = None,
        lost_members: dict[str, str] | None = None,
        who: str = "",
    ) -> None:
        """`device`: the member's GPU, unless the group uses main memory. `store` and `lost_members` are those of the
        trainer's process; other members use a connection. `who`: the member, for messages."""
        self.rendezvous, self.rank, self.device = rendezvous, rank, device
        self.name, self.secret = rendezvous.title, rendezvous.group
        self.store: Any = None
        servers = f"process {rank} of {rendezvous.world - 1} of the servers"
        self._member_name = who or (servers if rank else "the trainer")
        self._why, self._bucket, self._transfers = "", 0, 0
        self._lost_members: dict[str, str] = {} if lost_members is None else lost_members
        self._member: GroupMember | None = None
        self._transfer: Transfer | None = None
        with self._as_group_broken("could not join"):
            if rendezvous.backend not in TRANSFERS:
                raise GroupBroken(f"{rendezvous.backend} is not one of {', '.join(TRANSFERS)}")
            self.store = GroupStore(store or RemoteKeyValueStore(self._connect_to_host()), rendezvous.timeout_s)

    def _connect_to_host(self) -> GroupMember:
        """Connects to the rendezvous, once the trainer has opened the group."""
        at = self.rendezvous
        try:
            self._member = GroupMember(at.host, at.port, at.group, at.title, self._member_name, at.timeout_s)
        except TimeoutError:
            raise GroupBroken(f"{KEY}: waited {at.timeout_s:g} s for the trainer to come") from None
        return self._member

    def join(self) -> Self:
        """Returns when all members have joined, for a further transfer as for the first."""
        self._transfers += 1
        transfers, world = self._transfers, self.rendezvous.world
        with self._as_group_broken("could not join"):
            self._check_aborted()
            self.store.add(HERE, 1)
            if self.rank == 0:
                self.wait_until(lambda: int(self.store.add(HERE, 0)) == transfers * world, "the servers to come")
                self.store.add(GO, 1)
            else:
                go = "the trainer and the other servers to come"
                self.wait_until(lambda: int(self.store.add(GO, 0)) >= transfers, go)
            if self._transfer is None:
                self._transfer = TRANSFERS[self.rendezvous.backend](self)
                self._transfer.connect()
        return self

    @property
    def is_whole(self) -> bool:
        """Whether it can be used for another transfer."""
        return self._transfer is not None and not self._why

    def send(self, content: Tensor) -> None:
        """Sends the next bucket, a one-dimensional byte tensor."""
        assert self.rank == 0, "the first rank sends"
        with self._as_group_broken("could not send"):
            self._broadcast(content)

    def finish(self) -> None:
        """Returns when what was sent has arrived."""
        with self._as_group_broken("could not send"):
            self._finish()

    def receive(self, into: Tensor) -> None:
        """Receives the next bucket into a byte tensor of the same size."""
        assert self.rank > 0, "the first rank receives nothing"
        with self._as_group_broken("could not receive"):
            self._broadcast(into)
            self._finish()

    def pass_on(self, contents: Iterable[tuple[Tensor, int, str]]) -> None:
        """Broadcasts bytes, each from its own member, which is given by rank; returns when all have arrived."""
        with self._as_group_broken("could not pass on weights"):
            assert self._transfer is not None, "join comes first"
            for content, root, what in contents:
                self._transfer.broadcast(content, what, root)
            self._finish()

    def abort(self, why: str) -> None:
        """Ends the waits of all members, in any thread or process. The first reason counts."""
        self._why = self._why or why
        if self.store is None:  # not connected yet
            return
        with contextlib.suppress(RuntimeError, OSError):  # the rendezvous has ended
            self.store.compare_set(BROKEN, "", why)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(fault)

    def leave(self, fault: BaseException | None = None) -> None:
        """Leaves the group; with a fault it is aborted for all."""
        if fault is not None:
            self.abort(f"{self._member_name} left it: {fault}")
        if self._member is not None:
            self._member.leave()
        self._lost_members.pop(self.name, None)
        if self._transfer is not None:
            self._transfer.abort()
        self._transfer = None

    def wait_for_thread(self, make: Callable[[], Any], what: str) -> Any:
        """Runs it in a thread, as creating torch's process group cannot be cancelled."""
        made: Future[Any] = Future()

        def run() -> None:
            try:
                made.set_result(make())
            except Exception as fault:
                made.set_exception(fault)

        threading.Thread(target=run, name="weights: connect", daemon=True).start()
        self.wait_until(made.done, what)
        return made.result()

    def _broadcast(self, content: Tensor) -> None:
        assert self._transfer is not None, "join comes first"
        self._bucket += 1
        self._transfer.broadcast(content, f"bucket {self._bucket}")

    def _finish(self) -> None:
        assert self._transfer is not None, "join comes first"
        self._transfer.finish()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        began = checked = time.monotonic()
        pause_s = PAUSE_S
        while not condition():
            now = time.monotonic()
            if now - checked >= CHECK_INTERVAL_S:
                checked = now
                self._check_aborted()
            if self._why:
                raise GroupBroken(self._why)
            if now - began > self.rendezvous.timeout_s:
                raise GroupBroken(f"{KEY}: waited {now - began:.0f} s for {what}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _check_aborted(self) -> None:
        """Takes note if the group was aborted or a member is gone."""
        if self.store.check([BROKEN]):
            self._why = self._why or self.store.get(BROKEN).decode()
        elif why := self._lost_members.get(self.name):
            self.abort(why)

    @contextlib.contextmanager
    def _as_group_broken(self, failed: str) -> Iterator[None]:
        """Turns errors of the network into GroupBroken, with `failed` as their context."""
        try:
            yield
        except GroupBroken as broken:
            self._why = self._why or str(broken)
            raise GroupBroken(f"group {self.rendezvous.title}: {self._member_name} {failed}: {broken}") from None
        except (RuntimeError, OSError) as fault:  # torch's errors of stores, gloo and NCCL
            log.debug("group %s: %s", self.rendezvous.title, fault)
            self.abort(f"{self._member_name} {failed}: {_first_sentence(fault)}")
            raise GroupBroken(
                f"group {self.rendezvous.title}: {self._member_name} {failed}: {_first_sentence(fault)}"
            ) from None


def _first_sentence(fault: Exception) -> str:
    """First sentence of an error, without torch's source location and advice."""
    return SOURCE.sub("", str(fault)).partition("\n")[0].partition(". ")[0][:200]
