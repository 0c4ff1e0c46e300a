"""Sends weights through main memory, by gloo."""

import ctypes
import socket
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from areal_like.process.server_proof import new_nonce
from areal_like.weights import device_copies
from areal_like.weights.errors import GroupBroken
from areal_like.weights.group_member import PEER, is_member_proof, make_member_proof
from areal_like.weights.rendezvous import Rendezvous
from areal_like.weights.transfer import TransferGroup

c10d: Any = dist
"""Its annotations lack what is used here."""

NONCE = "nonce-"
POLL_S = 0.25
"""Interval of the checks whether the group was aborted."""


class GlooTransfer:
    def __init__(self, group: TransferGroup) -> None:
        self._group = group
        self._gloo: Any = None
        self._slot: Tensor | None = None

    def connect(self) -> None:
        group = self._group
        self._gloo = group.wait_for_thread(self._make, "the connections of the group")
        self.check_peers()

    def check_peers(self) -> None:
        """gloo accepts the first connection to an address; NCCL identifies members by an id that only they read. So
        each member proves its identity to each other one, over their gloo connection."""
        group = self._group
        me, world, secret, store = group.rank, group.rendezvous.world, group.secret, group.store
        store.set(f"{NONCE}{me}", new_nonce())
        nonces = [f"{NONCE}{rank}" for rank in range(world)]
        group.wait_until(lambda: bool(store.check(nonces)), "the nonces of the other members")
        words = [store.get(name).decode() for name in nonces]
        proofs = [make_member_proof(secret, PEER, str(me), str(rank), word) for rank, word in enumerate(words)]
        mine = torch.frombuffer(bytearray("".join(proofs).encode()), dtype=torch.uint8)
        theirs = torch.empty_like(mine)
        self._wait_for(self._gloo.alltoall_base(theirs, mine, [], []), "proofs of the other members")
        shown = bytes(theirs.numpy())
        size = len(shown) // world
        for rank in range(world):
            part = shown[rank * size : (rank + 1) * size].decode("latin-1")
            if not is_member_proof(part, secret, PEER, str(rank), str(me), words[me]):
                raise GroupBroken(f"the connection of member {rank} leads to another program")

    def broadcast(self, content: Tensor, what: str, root: int = 0) -> None:
        options = c10d.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        sent = self._in_main_memory(content) if device_copies.is_on_gpu(content) else content
        self._wait_for(self._gloo.broadcast([sent], options), what)

    def finish(self) -> None:
        """Each was waited for."""

    def abort(self) -> None:
        """Transfers cannot be cancelled."""

    def _in_main_memory(self, content: Tensor) -> Tensor:
        if self._slot is None or len(self._slot) < len(content):
            self._slot = device_copies.host_memory(len(content), is_pinned=True)
        slot = self._slot[: len(content)].copy_(content, non_blocking=True)
        device_copies.wait_for_stream(content.device)
        return slot

    def _make(self) -> Any:
        at, group = self._group.rendezvous, self._group
        options = c10d.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=at.timeout_s)
        options._threads = 1
        options._devices = [c10d.ProcessGroupGloo.create_device(hostname=_own_address(at))]
        return c10d.ProcessGroupGloo(c10d.PrefixStore("group", group.store), group.rank, at.world, options)

    def _wait_for(self, work: Any, what: str) -> None:
        try:
            self._group.wait_until(lambda: _is_done(work), what)
        except GroupBroken:
            _keep_until_done(self._gloo, work)
            raise
        work.wait()


def _keep_until_done(gloo: Any, work: Any) -> None:
    """Keeps a hanging transfer alive until it ends by its timeout: it cannot be cancelled, and freeing its group, also
    at exit, would block on it."""
    both = (gloo, work)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(both))

    def until_it_ends() -> None:
        while not work.is_completed():
            time.sleep(1)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(both))

    threading.Thread(target=until_it_ends, name="weights: left behind", daemon=True).start()


def _is_done(work: Any) -> bool:
    """Waits for up to POLL_S, which is faster than sleeping between polls."""
    try:
        work.wait(timedelta(seconds=POLL_S))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # completed just at the timeout: raises if it failed
    return True


def _own_address(rendezvous: Rendezvous) -> str:
    """This machine's address on the route to the trainer: loopback if the trainer is local."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((rendezvous.host, rendezvous.port))
        return str(probe.getsockname()[0])
