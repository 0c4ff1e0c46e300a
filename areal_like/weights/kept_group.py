"""The group of a process's last transfer, kept for the next one as long as its members stay the same."""

import contextlib
from collections.abc import Iterator

import torch

from areal_like.weights.collective import CPU, BroadcastGroup, BroadcastHost
from areal_like.weights.errors import GroupBroken
from areal_like.weights.rendezvous import Rendezvous


class KeptGroup:
    """`device`: the process's GPU, if any. `host`: in the trainer's process."""

    def __init__(self, device: torch.device = CPU, host: BroadcastHost | None = None) -> None:
        self.device, self._host = device, host
        self._group: BroadcastGroup | None = None

    @property
    def name(self) -> str:
        """The name and secret of the group; empty if there is none, or if a member has left it."""
        group = self._group
        if group is None or (self._host is not None and not self._host.is_complete(group)):
            return ""
        return group.secret

    @contextlib.contextmanager
    def opened(self, rendezvous: Rendezvous, rank: int = 0) -> Iterator[BroadcastGroup]:
        """The group of this transfer, to be joined. It is kept afterwards, unless it failed."""
        group = self._take(rendezvous, rank)
        try:
            yield group
        except BaseException as fault:
            group.leave(fault)
            raise
        if group.is_whole:
            self._group = group
        else:
            group.leave()

    def leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.leave()

    def _take(self, rendezvous: Rendezvous, rank: int) -> BroadcastGroup:
        group = self._group
        if group is not None and rendezvous.continues == group.secret:
            self._group, group.rendezvous = None, rendezvous
            return group
        self.leave()
        if rendezvous.continues:
            raise GroupBroken(f"group {rendezvous.title}: this process is no longer in the one that it continues")
        if self._host is not None:
            return self._host.open(rendezvous, self.device)
        return BroadcastGroup(rendezvous, rank, self.device)
