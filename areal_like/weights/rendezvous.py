"""Where trainer and servers meet to pass weights on without files."""

from typing import NamedTuple


class Rendezvous(NamedTuple):
    """One for each time that weights are sent. The trainer is rank 0 of `world`; the processes of the server that is
    told are `first_rank` and those after it. No wait in it is longer than `timeout_s`."""

    host: str
    port: int
    group: str
    """Its title, and after a dot a secret: who knows all of it can be in it, which is proved and never sent."""
    backend: str
    """gloo or nccl."""
    first_rank: int
    world: int
    timeout_s: float

    @property
    def title(self) -> str:
        """As it is called in words that others may read."""
        return self.group.partition(".")[0]
