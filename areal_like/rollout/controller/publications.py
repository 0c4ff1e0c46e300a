"""The published weights: which are the newest, and what it took to get them to the servers."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from areal_like.process.errors import Refused
from areal_like.weights.index import read_index
from areal_like.weights.probe import Probe


class Publication(NamedTuple):
    version: int
    folder: Path
    probe: Probe | None
    at: float


def read_publication(version: int, folder: Path) -> Publication:
    """Raises BadWeights where the folder does not hold what it should."""
    return Publication(version, folder, read_index(folder).probe, time.monotonic())


class Publications:
    """Only the newest is ever passed on."""

    def __init__(self) -> None:
        self.newest: Publication | None = None

    def add(self, publication: Publication) -> bool:
        """False where it is there already."""
        newest = self.newest
        if newest is not None and publication.version < newest.version:
            raise Refused(409, f"weights v{publication.version} are older than v{newest.version}, published before")
        self.newest = publication
        return newest is None or publication.version > newest.version

    def newer_than(self, version: int) -> Publication | None:
        return self.newest if self.newest is not None and self.newest.version > version else None


@dataclass
class UpdateTimes:
    """What updates tell of the servers, until the next step's metrics take it."""

    stall_s: list[float] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)
    serve_delay_s: list[float] = field(default_factory=list)
    generated: dict[str, list[float]] = field(default_factory=dict)
    """By server: tokens, seconds in which it was generating, and seconds."""
    _last_update: dict[str, float] = field(default_factory=dict)

    def updated(self, server: str, said: dict[str, Any], now: float) -> None:
        self.stall_s.append(said["stall_s"])
        self.load_s.append(said["load_s"])
        if server in self._last_update:
            sums = self.generated.setdefault(server, [0.0, 0.0, 0.0])
            elapsed_s = now - self._last_update[server]
            for index, value in enumerate((said["generated"]["tokens"], said["generated"]["busy_s"], elapsed_s)):
                sums[index] += value
        self._last_update[server] = now

    def gone(self, server: str) -> None:
        self._last_update.pop(server, None)

    def take(self) -> dict[str, float]:
        """Metrics since they were last taken; nothing of what did not happen since."""
        found: dict[str, float] = {}
        if self.stall_s:
            found["perf/update_stall_s"], found["perf/update_load_s"] = max(self.stall_s), max(self.load_s)
        if self.serve_delay_s:
            found["perf/serve_delay_s"] = max(self.serve_delay_s)
        sums = [each for each in self.generated.values() if each[2] > 0]
        if sums:
            found["perf/generate_tokens_per_s"] = sum(tokens / seconds for tokens, _, seconds in sums)
            found["perf/generate_busy_s"] = fmean(busy_s for _, busy_s, _ in sums)
            found["perf/generate_busy_share"] = fmean(busy_s / seconds for _, busy_s, seconds in sums)
        for each in (self.stall_s, self.load_s, self.serve_delay_s, self.generated):
            each.clear()
        return found
