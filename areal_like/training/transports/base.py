"""The interface of weight transports. All ranks create one; only the first rank calls its methods."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor

from areal_like.weights.probe import Probe

Completion = Callable[[], dict[str, Any]]
"""What is left to do for a publication, which may hash and write; returns its description for the controller."""


class Transport(Protocol):
    reason: str
    """The transport, and why it was chosen."""
    takes_adapter: bool
    """Whether it takes the adapter only, with the names of peft's files, instead of the model."""
    completes_in_background: bool
    """Whether publications are completed during the next step, in another thread; one at a time."""

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]], probe: Probe) -> Completion:
        """Tensors may change as soon as this returns. The one before must be complete."""

    def keep(self, versions: Sequence[int]) -> None:
        """Evaluations wait for these: their files are kept until the next call, beside those of the newest ones."""

    def close(self, early: bool) -> None:
        """After the trainer's last request; returns when no server needs these weights any more, or at once if
        `early`."""
