"""Broadcast group of one trainer rank and the server processes, created for each transfer of weights.

Independent of torch.distributed's groups. Every bucket is one broadcast. Every wait polls whether the group was
aborted, so that no member hangs in a transfer that another one never joins.
"""

import contextlib
import ctypes
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from areal_like.process.server_proof import new_nonce
from areal_like.weights.errors import GroupBroken
from areal_like.weights.group_member import PEER, GroupMember, is_member_proof, make_member_proof
from areal_like.weights.group_server import GroupServer, KeyValueStore
from areal_like.weights.group_store import GroupStore, RemoteKeyValueStore
from areal_like.weights.rendezvous import Rendezvous

log = logging.getLogger(__name__)

c10d: Any = dist
"""Its annotations lack what is used here."""

SOURCE = re.compile(r"\[[^\]]*\.(?:cc|cpp|h|hpp):\d+\]\s*")
KEY = "weights.broadcast.timeout_s"
HERE, GO, BROKEN, NONCE = "here", "go", "broken", "nonce-"
PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02
CHECK_INTERVAL_S = 0.25
"""Interval of the check whether the group was aborted."""


class BroadcastHost:
    """Rendezvous of groups: listens in the trainer's process, on `host` only. Closing it ends all waits there."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self._lost_members: dict[str, str] = {}
        """Title of each open group -> the member that disconnected without leaving."""
        self._registry = GroupServer(host, port, self._on_member_lost)
        self.port: int = self._registry.port

    def open(self, rendezvous: Rendezvous) -> "BroadcastGroup":
        """Opens a group as its rank 0; returns at once: `join` waits for the others."""
        self._lost_members[rendezvous.title] = ""
        return BroadcastGroup(
            rendezvous, 0, self._registry.open(rendezvous.title, rendezvous.group), self._lost_members
        )

    def close(self) -> None:
        self._registry.close()

    def _on_member_lost(self, title: str, who: str) -> None:
        if self._lost_members.get(title) == "":
            self._lost_members[title] = f"{who} is gone"


class BroadcastGroup:
    """One member of a group. Rank 0 sends and the others receive the same buckets in the same order. Every method
    raises GroupBroken when the group is aborted, when a member is gone, and after the timeout of a wait."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        rank: int,
        store: KeyValueStore | None = None,
        lost_members: dict[str, str] | None = None,
    ) -> None:
        """`store` and `lost_members` are those of the trainer's process; other members use a connection."""
        self.rendezvous, self.rank = rendezvous, rank
        self._why, self._bucket = "", 0
        self._lost_members: dict[str, str] = {} if lost_members is None else lost_members
        self._store: Any = None
        self._member: GroupMember | None = None
        self._group: Any = None
        with self._as_group_broken("could not join"):
            self._store = GroupStore(store or RemoteKeyValueStore(self._connect_to_host()), rendezvous.timeout_s)

    def _connect_to_host(self) -> GroupMember:
        """Connects to the rendezvous, once the trainer has opened the group."""
        at = self.rendezvous
        try:
            self._member = GroupMember(at.host, at.port, at.group, at.title, self._member_name, at.timeout_s)
        except TimeoutError:
            raise GroupBroken(f"{KEY}: waited {at.timeout_s:g} s for the trainer to come") from None
        return self._member

    def join(self) -> Self:
        """Returns when all members have joined."""
        with self._as_group_broken("could not join"):
            self._store.add(HERE, 1)
            if self.rank == 0:
                self._wait_until(lambda: self._num_joined() == self.rendezvous.world, "the servers to come")
                self._store.set(GO, "1")
            else:
                self._wait_until(lambda: bool(self._store.check([GO])), "the trainer and the other servers to come")
            self._group = self._connect()
            if self.rendezvous.backend == "gloo":
                self._check_peers()
        return self

    def send(self, content: Tensor) -> None:
        """Sends the next bucket, a one-dimensional byte tensor."""
        assert self.rank == 0, "the first rank sends"
        with self._as_group_broken("could not send"):
            self._broadcast(content)

    def receive(self, into: Tensor) -> None:
        """Receives the next bucket into a byte tensor of the same size."""
        assert self.rank > 0, "the first rank receives nothing"
        with self._as_group_broken("could not receive"):
            self._broadcast(into)

    def abort(self, why: str) -> None:
        """Ends the waits of all members, in any thread or process. The first reason counts."""
        self._why = self._why or why
        if self._store is None:  # not connected yet
            return
        with contextlib.suppress(RuntimeError, OSError):  # the rendezvous has ended
            self._store.compare_set(BROKEN, "", why)

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
        self._lost_members.pop(self.rendezvous.title, None)
        self._group = None

    def _connect(self) -> Any:
        """In a thread, as creating torch's process group cannot be cancelled."""
        made: Future[Any] = Future()

        def make() -> None:
            try:
                made.set_result(_make_process_group(c10d.PrefixStore("group", self._store), self.rendezvous, self.rank))
            except Exception as fault:
                made.set_exception(fault)

        threading.Thread(target=make, name="weights: connect", daemon=True).start()
        self._wait_until(made.done, "the connections of the group")
        return made.result()

    def _check_peers(self) -> None:
        """gloo accepts the first connection to an address; NCCL identifies members by an id that only they read. So
        each member proves its identity to each other one, over their gloo connection."""
        me, world, secret = self.rank, self.rendezvous.world, self.rendezvous.group
        self._store.set(f"{NONCE}{me}", new_nonce())
        nonces = [f"{NONCE}{rank}" for rank in range(world)]
        self._wait_until(lambda: bool(self._store.check(nonces)), "the nonces of the other members")
        words = [self._store.get(name).decode() for name in nonces]
        proofs = [make_member_proof(secret, PEER, str(me), str(rank), word) for rank, word in enumerate(words)]
        mine = torch.frombuffer(bytearray("".join(proofs).encode()), dtype=torch.uint8)
        theirs = torch.empty_like(mine)
        self._wait_for(self._group.alltoall_base(theirs, mine, [], []), "proofs of the other members")
        shown = bytes(theirs.numpy())
        size = len(shown) // world
        for rank in range(world):
            part = shown[rank * size : (rank + 1) * size].decode("latin-1")
            if not is_member_proof(part, secret, PEER, str(rank), str(me), words[me]):
                raise GroupBroken(f"the connection of member {rank} leads to another program")

    def _wait_for(self, work: Any, what: str) -> None:
        """Waits for work of gloo."""
        try:
            self._wait_until(lambda: _is_done(work), what)
        except GroupBroken:
            _keep_until_done(self._group, work)
            raise
        work.wait()

    def _broadcast(self, content: Tensor) -> None:
        self._bucket += 1
        options = c10d.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        is_gloo = self.rendezvous.backend == "gloo"
        sent = content if is_gloo else content.to(torch.device("cuda", torch.cuda.current_device()))
        work = self._group.broadcast([sent], options)
        if is_gloo:
            self._wait_for(work, f"bucket {self._bucket}")
            return
        try:
            self._wait_until(work.is_completed, f"bucket {self._bucket}")
        except GroupBroken:
            self._group.abort()
            raise
        work.wait()
        content.copy_(sent)

    def _num_joined(self) -> int:
        return int(self._store.add(HERE, 0))

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
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
        if self._store.check([BROKEN]):
            self._why = self._why or self._store.get(BROKEN).decode()
        elif why := self._lost_members.get(self.rendezvous.title):
            self.abort(why)

    @contextlib.contextmanager
    def _as_group_broken(self, failed: str) -> Iterator[None]:
        """Turns errors of the network into GroupBroken, with `failed` as their context."""
        try:
            yield
        except GroupBroken as broken:
            raise GroupBroken(f"group {self.rendezvous.title}: {self._member_name} {failed}: {broken}") from None
        except (RuntimeError, OSError) as fault:  # torch's errors of stores, gloo and NCCL
            log.debug("group %s: %s", self.rendezvous.title, fault)
            self.abort(f"{self._member_name} {failed}: {_first_sentence(fault)}")
            raise GroupBroken(
                f"group {self.rendezvous.title}: {self._member_name} {failed}: {_first_sentence(fault)}"
            ) from None

    @property
    def _member_name(self) -> str:
        return "the trainer" if self.rank == 0 else f"process {self.rank} of {self.rendezvous.world - 1} of the servers"


def join_group(rendezvous: Rendezvous, rank: int) -> BroadcastGroup:
    """Joins as a server process; returns when all members have joined."""
    group = BroadcastGroup(rendezvous, rank)
    try:
        return group.join()
    except GroupBroken as broken:
        group.leave(broken)
        raise


def _keep_until_done(group: Any, work: Any) -> None:
    """Keeps a hanging gloo transfer alive until it ends by its timeout: it cannot be cancelled, and freeing its group,
    also at exit, would block on it."""
    both = (group, work)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(both))

    def until_it_ends() -> None:
        while not work.is_completed():
            time.sleep(1)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(both))

    threading.Thread(target=until_it_ends, name="weights: left behind", daemon=True).start()


def _first_sentence(fault: Exception) -> str:
    """First sentence of an error, without torch's source location and advice."""
    return SOURCE.sub("", str(fault)).partition("\n")[0].partition(". ")[0][:200]


def _is_done(work: Any) -> bool:
    """Waits for up to CHECK_INTERVAL_S, which is faster than sleeping between polls."""
    try:
        work.wait(timedelta(seconds=CHECK_INTERVAL_S))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # completed just at the timeout: raises if it failed
    return True


def gpu_ids(device: torch.device) -> list[str]:
    """UUIDs of the GPUs that a member uses: two members on one GPU cannot use NCCL."""
    return [] if device.type == "cpu" else [str(torch.cuda.get_device_properties(device).uuid)]


def _make_process_group(store: Any, rendezvous: Rendezvous, rank: int) -> Any:
    limit = timedelta(seconds=rendezvous.timeout_s)
    if rendezvous.backend == "nccl":
        nccl = c10d.ProcessGroupNCCL.Options()
        nccl._timeout = limit
        return c10d.ProcessGroupNCCL(store, rank, rendezvous.world, nccl)
    gloo = c10d.ProcessGroupGloo._Options()
    gloo._timeout = limit
    gloo._threads = 1
    gloo._devices = [c10d.ProcessGroupGloo.create_device(hostname=_own_address(rendezvous))]
    return c10d.ProcessGroupGloo(store, rank, rendezvous.world, gloo)


def _own_address(rendezvous: Rendezvous) -> str:
    """This machine's address on the route to the trainer: loopback if the trainer is local."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((rendezvous.host, rendezvous.port))
        return str(probe.getsockname()[0])
