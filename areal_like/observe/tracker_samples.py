"""Samples and distributions of a step: written to files by the processes, sent to trackers by the observer."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import orjson

from areal_like.config.sections.trackers import TRACKERS, LogExtras, StatsLoggerConfig, is_enabled
from areal_like.process.identity import Identity
from areal_like.process.ownership import Ownership
from areal_like.process.run import Run

FOLDER = "samples"
TRAIN, EVAL = "train", "eval"


class Extras(NamedTuple):
    """`purpose` is "train", "eval", or "eval/NAME" of a benchmark. All samples have the same names; distributions are
    lists of numbers."""

    step: int
    purpose: str
    samples: Sequence[Mapping[str, Any]]
    distributions: Mapping[str, Sequence[float]]

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Self:
        """Parses a line of a file."""
        return cls(line["step"], line["purpose"], line["samples"], line["distributions"])

    @property
    def table(self) -> str:
        """Name of the samples in trackers."""
        return f"samples/{self.purpose}"

    @property
    def histograms(self) -> dict[str, Sequence[float]]:
        """Distributions that are not empty, by their names in trackers."""
        return {f"distributions/{self.purpose}/{name}": each for name, each in self.distributions.items() if each}

    @property
    def columns(self) -> list[str]:
        return list(self.samples[0]) if self.samples else []

    @property
    def rows(self) -> list[list[Any]]:
        return [list(sample.values()) for sample in self.samples]


class ExtrasWriter:
    """Writes `samples/<role>-<index>.jsonl`, a line per call."""

    def __init__(self, run: Run, me: Identity) -> None:
        self._path = run.directory / FOLDER / f"{me.file_name}.jsonl"
        self._attempt, self._ownership = me.attempt, Ownership.of_process(run)

    def write(self, extras: Extras) -> None:
        line = {"attempt": self._attempt, "time": time.time(), **extras._asdict()}
        line["distributions"] = {
            name: [value for value in map(float, values) if math.isfinite(value)]
            for name, values in extras.distributions.items()
        }
        self._ownership.require()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")


class ExtrasFilter:
    """Selects the extras that one tracker is configured to get."""

    def __init__(self, config: LogExtras) -> None:
        self._config = config
        self._last_evaluation: int | None = None

    def choose(self, extras: Extras) -> Extras:
        if not self._is_due(extras):
            return extras._replace(samples=(), distributions={})
        return extras._replace(
            samples=extras.samples if self._config.samples else (),
            distributions=extras.distributions if self._config.distributions else {},
        )

    def _is_due(self, extras: Extras) -> bool:
        if extras.purpose == TRAIN:
            return is_due(self._config, extras.step)
        last, interval = self._last_evaluation, self._config.interval
        if last is not None and last < extras.step < last + interval:
            return False
        self._last_evaluation = extras.step
        return True


def is_due(config: LogExtras, step: int) -> bool:
    """Whether the extras of this training step are sent."""
    return step == 1 or step % config.interval == 0


def enabled_extras(config: StatsLoggerConfig) -> list[LogExtras]:
    """Settings of the enabled trackers that get any extras."""
    enabled = [getattr(config, name).log_extras for name in TRACKERS if is_enabled(name, config)]
    return [each for each in enabled if each.samples or each.distributions]
