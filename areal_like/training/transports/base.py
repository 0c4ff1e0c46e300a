"""What a way for weights to the servers does. The first rank alone speaks to it, but for making it."""

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from areal_like.weights.probe import Probe


class Transport(Protocol):
    reason: str
    """Which way it is, and why."""
    takes_adapter: bool
    """Whether it is given the adapter alone, by the names of peft's files, and not the model."""

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]], probe: Probe) -> dict[str, Any]:
        """What the controller is told of a new version. Tensors may change as soon as this returns."""

    def close(self, early: bool) -> None:
        """The trainer has said its last word; comes back when no server can want these weights any more, or at once
        where the end is early."""
