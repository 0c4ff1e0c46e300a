"""What a tracker is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping


class Tracker(ABC):
    """Gets the metrics of a run, with our step as the x-axis. It may raise; whoever calls it goes on without it."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The values of `step`; they may be nan. Steps can come again, and evaluations of earlier ones late."""

    def rewind(self, step: int) -> None:
        """Steps after this one come again, or for the first time after a stop. Most trackers need not know."""
        return

    @abstractmethod
    def close(self) -> None:
        """Sends what is left."""
