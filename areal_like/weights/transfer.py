"""Interface of the ways to move bytes within a group: by gloo, by NCCL, through memory of a GPU."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from areal_like.weights.rendezvous import Rendezvous


class TransferGroup(Protocol):
    """The group, as a way to move bytes uses it."""

    rendezvous: Rendezvous
    rank: int
    device: torch.device
    """The GPU of this member, unless the group uses main memory."""
    secret: str
    store: Any
    """torch's key-value store."""

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Raises GroupBroken when the group is aborted, and after its timeout."""

    def wait_for_thread(self, make: Callable[[], Any], what: str) -> Any:
        """The result of what cannot be cancelled."""


class Transfer(Protocol):
    def connect(self) -> None: ...

    def broadcast(self, content: Tensor, what: str, root: int = 0) -> None:
        """The next bytes, of the same size for all: those of member `root` go to the others. They may be on their way
        when it returns."""

    def finish(self) -> None:
        """Until all have arrived."""

    def abort(self) -> None:
        """Ends what is under way, as far as it can be ended."""


def parts(content: Tensor, size: int) -> Iterator[Tensor]:
    """Of a byte tensor, one after another."""
    return (content[at : at + size] for at in range(0, len(content), size))
