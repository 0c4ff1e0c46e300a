"""The interface of weight transports. All ranks create one; only the first rank calls its methods."""

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from areal_like.weights.probe import Probe


class Transport(Protocol):
    reason: str
    """The transport, and why it was chosen."""
    takes_adapter: bool
    """Whether it takes the adapter only, with the names of peft's files, instead of the model."""

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]], probe: Probe) -> dict[str, Any]:
        """Returns the publication for the controller. Tensors may change as soon as this returns."""

    def close(self, early: bool) -> None:
        """After the trainer's last request; returns when no server needs these weights any more, or at once if
        `early`."""
