"""Published weights: the newest version, the version that servers should load, and timings of weight updates."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from areal_like.process.errors import HttpError
from areal_like.weights.index import Index, parse_index, read_index
from areal_like.weights.probe import Difference, Probe, dump_probe

LOADED = "loaded"
"""Transport of weights with which the servers start."""


@dataclass(frozen=True)
class Publication:
    """`folder` for weights in files. For weights that the trainer sends, `sender` is its address and its GPU. `at`:
    when the trainer began with it."""

    version: int
    transport: str
    folder: Path | None
    index: Index
    sender: dict[str, Any] | None
    at: float

    @property
    def probe(self) -> Probe | None:
        return self.index.probe

    @property
    def is_sent(self) -> bool:
        return self.transport == "collective"

    def exists(self) -> bool:
        """Whether its files are still there."""
        return self.folder is None or self.folder.is_dir()

    def body(self, mode: str, noise: Difference | None = None) -> dict[str, Any]:
        """The body of an update request. `noise`: how much right servers differ from the probe."""
        return {
            "version": self.version,
            "transport": self.transport,
            "folder": None if self.folder is None else str(self.folder),
            "probe": None if self.probe is None else dump_probe(self.probe._replace(noise=noise)),
            "mode": mode,
        }


def model_publication(folder: Path, version: int) -> Publication:
    """The weights in a model's folder, with which the servers start."""
    return Publication(version, LOADED, folder, Index(version, LOADED, [], None), None, time.monotonic())


def read_publication(body: dict[str, Any]) -> Publication:
    """The body of /publish as a Publication. Raises BadWeights for an incomplete or wrong folder."""
    version, transport = body["version"], body.get("transport", "disk")
    began = time.monotonic() - body.get("age_ms", 0) / 1000
    if transport == "collective":
        index = parse_index(body["index"], f"the index of weights v{version}")
        return Publication(version, transport, None, index, body["meeting"], began)
    folder = Path(body["folder"])
    return Publication(version, transport, folder, read_index(folder), None, began)


class Publications:
    """Servers load the newest publication, unless an older version is held for an evaluation."""

    def __init__(self) -> None:
        self.newest: Publication | None = None
        self._kept: dict[int, Publication] = {}
        """Publications in files, by version; the trainer removes older ones."""
        self._held: int | None = None
        self._bound: int | None = None

    def add(self, publication: Publication) -> bool:
        """False if it is known already."""
        newest = self.newest
        if newest is not None and publication.version < newest.version:
            raise HttpError(409, f"weights v{publication.version} are older than v{newest.version}, published before")
        self.newest = publication
        if not publication.is_sent:
            known = {**self._kept, publication.version: publication}
            self._kept = {version: each for version, each in known.items() if each.exists()}
        return newest is None or publication.version > newest.version

    def hold(self, version: int | None) -> bool:
        """Servers load nothing newer than this version until another one, or None, is held. False if nothing
        changes."""
        changes = version != self._held
        if changes:
            self._held = self._bound = version
        return changes

    @property
    def is_held(self) -> bool:
        return self._held is not None

    def target(self, served: Collection[int]) -> Publication | None:
        """The publication that servers should load now. `served` are the versions that servers have.

        None if the held version is served, but its files are gone. A held version that is served nowhere and has no
        files (its servers died) is held no longer: the newest takes its place."""
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
    """Timings that servers report with weight updates, collected until the metrics of the next step."""

    stall_s: list[float] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)
    read_back: list[float] = field(default_factory=list)
    """Share of the tensors that the server could read back, per update."""
    probe_difference: list[float] = field(default_factory=list)
    """Mean over the probe's tokens, per update."""
    serve_delay_s: list[float] = field(default_factory=list)
    generated: dict[str, list[float]] = field(default_factory=dict)
    """By server: generated tokens, busy seconds and elapsed seconds."""
    _last_update: dict[str, float] = field(default_factory=dict)

    def updated(self, server: str, report: dict[str, Any], now: float) -> None:
        self.stall_s.append(report["stall_s"])
        self.load_s.append(report["load_s"])
        if "read_back" in report:
            covered, uncovered = report["read_back"]["covered"], len(report["read_back"]["uncovered"])
            self.read_back.append(covered / max(1, covered + uncovered))
        if server in self._last_update:
            sums = self.generated.setdefault(server, [0.0, 0.0, 0.0])
            elapsed_s = now - self._last_update[server]
            for index, value in enumerate((report["generated"]["tokens"], report["generated"]["busy_s"], elapsed_s)):
                sums[index] += value
        self._last_update[server] = now

    def server_gone(self, server: str) -> None:
        self._last_update.pop(server, None)

    def take(self) -> dict[str, float]:
        """Metrics since the last call; those without a value are left out."""
        metrics: dict[str, float] = {}
        if self.stall_s:
            metrics["perf/update_stall_s"], metrics["perf/update_load_s"] = max(self.stall_s), max(self.load_s)
        if self.read_back:
            metrics["perf/read_back_share"] = min(self.read_back)
        if self.probe_difference:
            metrics["offpolicy/probe_difference"] = max(self.probe_difference)
        if self.serve_delay_s:
            metrics["perf/serve_delay_s"] = max(self.serve_delay_s)
        sums = [each for each in self.generated.values() if each[2] > 0]
        if sums:
            metrics["perf/generate_tokens_per_s"] = sum(tokens / seconds for tokens, _, seconds in sums)
            metrics["perf/generate_busy_s"] = fmean(busy_s for _, busy_s, _ in sums)
            metrics["perf/generate_busy_share"] = fmean(busy_s / seconds for _, busy_s, seconds in sums)
        for each in (
            *(self.stall_s, self.load_s, self.read_back, self.probe_difference, self.serve_delay_s, self.generated),
        ):
            each.clear()
        return metrics
