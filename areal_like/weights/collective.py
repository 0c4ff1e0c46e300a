"""A group of one trainer rank and the processes of servers, made anew for each time that weights are sent.

It stands beside torch.distributed's own groups and touches none of them. Every bucket is one broadcast. Whoever waits
looks again and again whether the group was broken up, so that nobody hangs in a transfer that another never comes to.
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

from areal_like.weights.errors import GroupBroken
from areal_like.weights.group_member import PEER, GroupMember, is_proof, make_proof, new_nonce
from areal_like.weights.group_server import GroupServer, KeyValueStore
from areal_like.weights.group_store import GroupStore, RemoteKeyValueStore
from areal_like.weights.rendezvous import Rendezvous

log = logging.getLogger(__name__)

c10d: Any = dist
"""Whose annotations leave out what is used here."""

SOURCE = re.compile(r"\[[^\]]*\.(?:cc|cpp|h|hpp):\d+\]\s*")
KEY = "weights.broadcast.timeout_s"
HERE, GO, BROKEN, NONCE = "here", "go", "broken", "nonce-"
PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02
LOOK_S = 0.25
"""How often it is looked whether the group was broken up, where nothing else tells."""


class BroadcastHost:
    """Where groups meet: it listens in the trainer's process, on `host` alone. When it closes, who waits there ends."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self._gone: dict[str, str] = {}
        """By each group that is open: who of it went without a word."""
        self._registry = GroupServer(host, port, self._on_gone)
        self.port: int = self._registry.port

    def open(self, meeting: Rendezvous) -> "BroadcastGroup":
        """As the first rank of a group; comes back at once: `meet` waits for the others."""
        self._gone[meeting.title] = ""
        return BroadcastGroup(meeting, 0, self._registry.open(meeting.title, meeting.group), self._gone)

    def close(self) -> None:
        self._registry.close()

    def _on_gone(self, title: str, who: str) -> None:
        if self._gone.get(title) == "":
            self._gone[title] = f"{who} is gone"


class BroadcastGroup:
    """One member. Rank 0 sends and the others receive, all the same buckets in the same order. Everything raises
    GroupBroken when the group is broken up, when one of it is gone, and past the limit of a wait."""

    def __init__(
        self, meeting: Rendezvous, rank: int, board: KeyValueStore | None = None, gone: dict[str, str] | None = None
    ) -> None:
        """`board` and `gone` are the trainer's own; the others ask for what is there."""
        self.meeting, self.rank = meeting, rank
        self._why, self._bucket = "", 0
        self._gone: dict[str, str] = {} if gone is None else gone
        self._store: Any = None
        self._member: GroupMember | None = None
        self._group: Any = None
        with self._in_words("could not meet"):
            self._store = GroupStore(board or RemoteKeyValueStore(self._come()), meeting.timeout_s)

    def _come(self) -> GroupMember:
        """To where the others meet, as soon as the trainer is there."""
        at = self.meeting
        try:
            self._member = GroupMember(at.host, at.port, at.group, at.title, self._who, at.timeout_s)
        except TimeoutError:
            raise GroupBroken(f"{KEY}: waited {at.timeout_s:g} s for the trainer to come") from None
        return self._member

    def meet(self) -> Self:
        """Comes back when all are there."""
        with self._in_words("could not meet"):
            self._store.add(HERE, 1)
            if self.rank == 0:
                self._until(lambda: self._num_here() == self.meeting.world, "the servers to come")
                self._store.set(GO, "1")
            else:
                self._until(lambda: bool(self._store.check([GO])), "the trainer and the other servers to come")
            self._group = self._connect()
            if self.meeting.backend == "gloo":
                self._check_peers()
        return self

    def send(self, content: Tensor) -> None:
        """The next bucket, a row of bytes."""
        assert self.rank == 0, "the first rank sends"
        with self._in_words("could not send"):
            self._broadcast(content)

    def receive(self, into: Tensor) -> None:
        """The next bucket, into a row of as many bytes."""
        assert self.rank > 0, "the first rank receives nothing"
        with self._in_words("could not receive"):
            self._broadcast(into)

    def abort(self, why: str) -> None:
        """All who wait in it are told, in whichever thread or process. The first reason counts."""
        self._why = self._why or why
        if self._store is None:  # it never got to where groups meet
            return
        with contextlib.suppress(RuntimeError, OSError):  # where groups meet nobody is left
            self._store.compare_set(BROKEN, "", why)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(fault)

    def leave(self, fault: BaseException | None = None) -> None:
        """Who leaves by a fault takes the others along."""
        if fault is not None:
            self.abort(f"{self._who} left it: {fault}")
        if self._member is not None:
            self._member.leave()
        self._gone.pop(self.meeting.title, None)
        self._group = None

    def _connect(self) -> Any:
        """In a thread, as making a group of torch's cannot be called off."""
        made: Future[Any] = Future()

        def make() -> None:
            try:
                made.set_result(_make(c10d.PrefixStore("group", self._store), self.meeting, self.rank))
            except Exception as fault:
                made.set_exception(fault)

        threading.Thread(target=make, name="weights: connect", daemon=True).start()
        self._until(made.done, "the connections of the group")
        return made.result()

    def _check_peers(self) -> None:
        """gloo connects with whoever comes first to an address; NCCL knows its own by a number that only they read.
        Each member proves to each other one, over their very connection, that it is who was meant."""
        me, world, secret = self.rank, self.meeting.world, self.meeting.group
        self._store.set(f"{NONCE}{me}", new_nonce())
        nonces = [f"{NONCE}{rank}" for rank in range(world)]
        self._until(lambda: bool(self._store.check(nonces)), "the other members to say their nonces")
        words = [self._store.get(name).decode() for name in nonces]
        proofs = [make_proof(secret, PEER, str(me), str(rank), word) for rank, word in enumerate(words)]
        mine = torch.frombuffer(bytearray("".join(proofs).encode()), dtype=torch.uint8)
        theirs = torch.empty_like(mine)
        self._wait_for(self._group.alltoall_base(theirs, mine, [], []), "proofs of the other members")
        shown = bytes(theirs.numpy())
        size = len(shown) // world
        for rank in range(world):
            part = shown[rank * size : (rank + 1) * size].decode("latin-1")
            if not is_proof(part, secret, PEER, str(rank), str(me), words[me]):
                raise GroupBroken(f"what is connected in the place of member {rank} is not that member")

    def _wait_for(self, work: Any, what: str) -> None:
        """Of gloo."""
        try:
            self._until(lambda: _is_done(work), what)
        except GroupBroken:
            _leave_behind(self._group, work)
            raise
        work.wait()

    def _broadcast(self, content: Tensor) -> None:
        self._bucket += 1
        options = c10d.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        is_gloo = self.meeting.backend == "gloo"
        sent = content if is_gloo else content.to(torch.device("cuda", torch.cuda.current_device()))
        work = self._group.broadcast([sent], options)
        if is_gloo:
            self._wait_for(work, f"bucket {self._bucket}")
            return
        try:
            self._until(work.is_completed, f"bucket {self._bucket}")
        except GroupBroken:
            self._group.abort()
            raise
        work.wait()
        content.copy_(sent)

    def _num_here(self) -> int:
        return int(self._store.add(HERE, 0))

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        began = looked = time.monotonic()
        pause_s = PAUSE_S
        while not condition():
            now = time.monotonic()
            if now - looked >= LOOK_S:
                looked = now
                self._look()
            if self._why:
                raise GroupBroken(self._why)
            if now - began > self.meeting.timeout_s:
                raise GroupBroken(f"{KEY}: waited {now - began:.0f} s for {what}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _look(self) -> None:
        """Whether somebody broke it up, or went."""
        if self._store.check([BROKEN]):
            self._why = self._why or self._store.get(BROKEN).decode()
        elif why := self._gone.get(self.meeting.title):
            self.abort(why)

    @contextlib.contextmanager
    def _in_words(self, failed: str) -> Iterator[None]:
        """Faults of the network by what they mean here."""
        try:
            yield
        except GroupBroken as broken:
            raise GroupBroken(f"group {self.meeting.title}: {self._who} {failed}: {broken}") from None
        except (RuntimeError, OSError) as fault:  # torch's errors of stores, gloo and NCCL
            log.debug("group %s: %s", self.meeting.title, fault)
            self.abort(f"{self._who} {failed}: {_first_words(fault)}")
            raise GroupBroken(f"group {self.meeting.title}: {self._who} {failed}: {_first_words(fault)}") from None

    @property
    def _who(self) -> str:
        return "the trainer" if self.rank == 0 else f"process {self.rank} of {self.meeting.world - 1} of the servers"


def join_group(meeting: Rendezvous, rank: int) -> BroadcastGroup:
    """As a process of a server; comes back when all are there."""
    group = BroadcastGroup(meeting, rank)
    try:
        return group.meet()
    except GroupBroken as broken:
        group.leave(broken)
        raise


def _leave_behind(group: Any, work: Any) -> None:
    """A transfer of gloo's that hangs cannot be called off, and to let go of its group, be it when the process ends,
    would be to wait for it. So nothing ever lets go of it before it has ended by its own limit."""
    both = (group, work)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(both))

    def until_it_ends() -> None:
        while not work.is_completed():
            time.sleep(1)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(both))

    threading.Thread(target=until_it_ends, name="weights: left behind", daemon=True).start()


def _first_words(fault: Exception) -> str:
    """Of messages that go on with where in torch they come from, and with what to do about that."""
    return SOURCE.sub("", str(fault)).partition("\n")[0].partition(". ")[0][:200]


def _is_done(work: Any) -> bool:
    """Waits for a moment, which costs less time than to sleep would."""
    try:
        work.wait(timedelta(seconds=LOOK_S))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it ended after all, just when the moment was over: whether that was well is asked again
    return True


def gpu_ids(device: torch.device) -> list[str]:
    """Those that a member by itself would use, by names that nothing else has: two members on one cannot use NCCL."""
    return [] if device.type == "cpu" else [str(torch.cuda.get_device_properties(device).uuid)]


def _make(store: Any, meeting: Rendezvous, rank: int) -> Any:
    limit = timedelta(seconds=meeting.timeout_s)
    if meeting.backend == "nccl":
        nccl = c10d.ProcessGroupNCCL.Options()
        nccl._timeout = limit
        return c10d.ProcessGroupNCCL(store, rank, meeting.world, nccl)
    gloo = c10d.ProcessGroupGloo._Options()
    gloo._timeout = limit
    gloo._threads = 1
    gloo._devices = [c10d.ProcessGroupGloo.create_device(hostname=_own_address(meeting))]
    return c10d.ProcessGroupGloo(store, rank, meeting.world, gloo)


def _own_address(meeting: Rendezvous) -> str:
    """Of this machine, as seen from the trainer: loopback where that is there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((meeting.host, meeting.port))
        return str(probe.getsockname()[0])
