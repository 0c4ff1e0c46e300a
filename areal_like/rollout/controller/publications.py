"""The published weights: which are the newest, and what it took to get them to the servers."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from areal_like.process.errors import HttpError
from areal_like.weights.index import Index, parse_index, read_index
from areal_like.weights.probe import Probe


@dataclass(frozen=True)
class Publication:
    """`folder` where the weights lie in files; where the trainer sends them itself, `place` is where it can be met, and
    on which GPU it is."""

    version: int
    transport: str
    folder: Path | None
    index: Index
    place: dict[str, Any] | None
    at: float

    @property
    def probe(self) -> Probe | None:
        return self.index.probe

    @property
    def is_sent(self) -> bool:
        return self.transport == "collective"

    def exists(self) -> bool:
        """Whether it can still be loaded."""
        return self.folder is None or self.folder.is_dir()

    def body(self, mode: str) -> dict[str, Any]:
        """What a server is told of it."""
        return {
            "version": self.version,
            "transport": self.transport,
            "folder": None if self.folder is None else str(self.folder),
            "probe": None if self.probe is None else self.probe._asdict(),
            "mode": mode,
        }


def read_publication(told: dict[str, Any]) -> Publication:
    """Of what the trainer says. Raises BadWeights where the folder does not hold what it should."""
    version, transport = told["version"], told.get("transport", "disk")
    if transport == "collective":
        index = parse_index(told["index"], f"the index of weights v{version}")
        return Publication(version, transport, None, index, told["meeting"], time.monotonic())
    folder = Path(told["folder"])
    return Publication(version, transport, folder, read_index(folder), None, time.monotonic())


class Publications:
    """Only the newest is passed on, but while servers have to keep an older version."""

    def __init__(self) -> None:
        self.newest: Publication | None = None
        self._kept: dict[int, Publication] = {}
        """Those in files, by version; the trainer removes older ones."""
        self._held: int | None = None
        self._bound: int | None = None

    def add(self, publication: Publication) -> bool:
        """False where it is there already."""
        newest = self.newest
        if newest is not None and publication.version < newest.version:
            raise HttpError(409, f"weights v{publication.version} are older than v{newest.version}, published before")
        self.newest = publication
        if not publication.is_sent:
            known = {**self._kept, publication.version: publication}
            self._kept = {version: one for version, one in known.items() if one.exists()}
        return newest is None or publication.version > newest.version

    def hold(self, version: int | None) -> bool:
        """Servers keep this version, or take nothing newer, until another is held or none. False where that is so
        already."""
        changes = version != self._held
        if changes:
            self._held = self._bound = version
        return changes

    def target(self, served: Collection[int]) -> Publication | None:
        """What servers should have now; None where what some have is held and no other can get it any more. `served`
        is what they have. A held version that is nowhere left, as its servers died, is held no more: the newest takes
        its place."""
        newest = self.newest
        if newest is None or self._bound is None or newest.version <= self._bound:
            return newest
        held = self._kept.get(self._bound)
        if held is not None and held.exists():
            return held
        if self._bound in served:
            return None
        self._bound = newest.version
        return newest

    def newer_than(self, version: int) -> Publication | None:
        return self.newest if self.newest is not None and self.newest.version > version else None


@dataclass
class UpdateTimings:
    """What updates tell of the servers, until the next step's metrics take it."""

    stall_s: list[float] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)
    read_back: list[float] = field(default_factory=list)
    """Shares of the tensors that a server could read back."""
    serve_delay_s: list[float] = field(default_factory=list)
    generated: dict[str, list[float]] = field(default_factory=dict)
    """By server: tokens, seconds in which it was generating, and seconds."""
    _last_update: dict[str, float] = field(default_factory=dict)

    def updated(self, server: str, said: dict[str, Any], now: float) -> None:
        self.stall_s.append(said["stall_s"])
        self.load_s.append(said["load_s"])
        if "read_back" in said:
            covered, uncovered = said["read_back"]["covered"], len(said["read_back"]["uncovered"])
            self.read_back.append(covered / max(1, covered + uncovered))
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
        if self.read_back:
            found["perf/read_back_share"] = min(self.read_back)
        if self.serve_delay_s:
            found["perf/serve_delay_s"] = max(self.serve_delay_s)
        sums = [each for each in self.generated.values() if each[2] > 0]
        if sums:
            found["perf/generate_tokens_per_s"] = sum(tokens / seconds for tokens, _, seconds in sums)
            found["perf/generate_busy_s"] = fmean(busy_s for _, busy_s, _ in sums)
            found["perf/generate_busy_share"] = fmean(busy_s / seconds for _, busy_s, seconds in sums)
        for each in (self.stall_s, self.load_s, self.read_back, self.serve_delay_s, self.generated):
            each.clear()
        return found
