"""Rendezvous of trainer and servers for a transfer of weights without files. Imports no torch."""

from typing import NamedTuple


class Rendezvous(NamedTuple):
    """One per transfer. The trainer is rank 0 of `world`; the processes of the server that gets this are `first_rank`
    and following. `timeout_s` limits every wait."""

    host: str
    port: int
    group: str
    """The group's title, a dot, and a secret: members prove that they know it, and never send it."""
    backend: str
    """gloo, nccl or ipc; see `transfer_path`."""
    first_rank: int
    world: int
    timeout_s: float
    continues: str = ""
    """The group of an earlier transfer with the same members, whose connections are used again."""

    @property
    def title(self) -> str:
        """The group's name without the secret, for messages."""
        return self.group.partition(".")[0]
