"""Tracker interface, and the configuration that trackers get."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import yaml

from areal_like.config.sections.trackers import LogExtras
from areal_like.observe.tracker_samples import Extras, ExtrasFilter
from areal_like.process.run import CONFIG, Run


class Tracker(ABC):
    """Gets the metrics of a run, with the completed steps as x-axis, and the samples and distributions that `extras`
    selects. It may raise: the run continues without it."""

    def __init__(self, extras: LogExtras) -> None:
        self._filter = ExtrasFilter(extras)

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The values of `step`; they may be nan. Steps may repeat, and evaluations of earlier steps may be late."""

    def log_extras(self, extras: Extras) -> None:
        """Sends the selected samples and distributions of a step."""
        selected = self._filter.choose(extras)
        if selected.samples or selected.distributions:
            self.show(selected)

    @abstractmethod
    def show(self, extras: Extras) -> None:
        """Samples as a table, distributions as histograms."""

    def rewind(self, step: int) -> None:
        """Called before steps after `step` are repeated or resumed. Most trackers need nothing."""
        return

    @abstractmethod
    def close(self) -> None:
        """Sends remaining values."""


def tracker_config(run: Run, more: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration in the run directory, which contains no secrets, and the user's additional entries."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    values = yaml.load((run.directory / CONFIG).read_text(encoding="utf-8"), loader)
    values.pop("defaults", None)
    return {**values, **(more or {})}
