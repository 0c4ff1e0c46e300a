"""What a tracker is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from areal_like.config.sections.trackers import LogExtras
from areal_like.observe.extras import Extras, ExtrasFilter


class Tracker(ABC):
    """Gets the metrics of a run, with our step as the x-axis. It may raise; whoever calls it goes on without it.
    `extras` says which samples and distributions it gets besides."""

    def __init__(self, extras: LogExtras) -> None:
        self._chooser = ExtrasFilter(extras)

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The values of `step`; they may be nan. Steps can come again, and evaluations of earlier ones late."""

    def log_extras(self, extras: Extras) -> None:
        """Samples and distributions of a step, as far as they are wanted."""
        wanted = self._chooser.choose(extras)
        if wanted.samples or wanted.distributions:
            self.show(wanted)

    @abstractmethod
    def show(self, extras: Extras) -> None:
        """Samples as a table, distributions as histograms."""

    def rewind(self, step: int) -> None:
        """Steps after this one come again, or for the first time after a stop. Most trackers need not know."""
        return

    @abstractmethod
    def close(self) -> None:
        """Sends what is left."""
