"""New weights for a server: loaded beside generation, checked before and after they are swapped in."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.serving.embedded.engine import NEVER_TOLD, Engine
from areal_like.serving.embedded.streams import Streams
from areal_like.weights.disk import Publication, load
from areal_like.weights.fingerprint import compare, dtype_name, tensor_hash
from areal_like.weights.probe import Probe, check_probe


class Swapped(NamedTuple):
    """What the moment of the swap took and showed. `tokens` and `busy_s`: since the one before."""

    stall_s: float
    probe_logprobs: list[float]
    tokens: int
    busy_s: float


class Updates:
    """One update at a time. Every fault is a ValueError that says what is wrong, and leaves the old weights in use."""

    def __init__(self, streams: Streams, run_id: str) -> None:
        self._streams, self._run_id = streams, run_id
        self._engine: Engine = streams.driver.engine
        self._one = asyncio.Lock()
        self._tokens, self._busy_s = 0, 0.0
        self.is_told = False
        """Whether the weights in use are those of the run as it is now."""

    def forget(self) -> None:
        """The run went back to a checkpoint: what is in use is none of its weights, and an older version may come."""
        self.is_told = False

    async def update(
        self, version: int, folder: Path, probe: Probe | None, is_wanted: Callable[[], bool]
    ) -> dict[str, Any]:
        """`is_wanted` is asked once more before the swap: who ordered it may be of the past by then."""
        async with self._one:
            began = time.perf_counter()
            publication = await asyncio.to_thread(self._load, version, folder)
            load_s = time.perf_counter() - began
            if not is_wanted():
                raise ValueError(f"version {version}: the run went back to a checkpoint while it was loaded")
            swapped = await self._streams.call(lambda: self._swap(publication, probe or publication.probe))
            self.is_told = True
        return {
            "version": version,
            "stall_s": swapped.stall_s,
            "load_s": load_s,
            "probe_logprobs": swapped.probe_logprobs,
            "tensors": len(publication.tensors),
            "generated": {"tokens": swapped.tokens, "busy_s": swapped.busy_s},
        }

    def _load(self, version: int, folder: Path) -> Publication:
        newer_than = self._engine.version if self.is_told else NEVER_TOLD
        publication = load(folder, self._engine.weights.expected(), newer_than, self._run_id)
        if publication.version != version:
            raise ValueError(f"{folder} holds version {publication.version} of the weights and not {version}")
        self._engine.weights.stage(publication.tensors)
        return publication

    def _swap(self, publication: Publication, probe: Probe | None) -> Swapped:
        """In the engine's thread, between two steps."""
        began = time.perf_counter()
        found = self._engine.swap(publication.version, lambda: self._check(publication, probe))
        counts = self._engine.counts
        swapped = Swapped(
            time.perf_counter() - began, found or [], counts.tokens - self._tokens, counts.busy_s - self._busy_s
        )
        self._tokens, self._busy_s = counts.tokens, counts.busy_s
        return swapped

    def _check(self, publication: Publication, probe: Probe | None) -> list[float]:
        """Reads back what is in use, and computes with it."""
        compare(publication.hashes, self.hashes(), publication.version)
        if probe is None:
            return []
        found = self._engine.logprobs(probe.token_ids)
        check_probe(probe, found, dtype_name(self._engine.dtype))
        return found

    def hashes(self) -> dict[str, str]:
        """Of every tensor that is in use."""
        return {name: tensor_hash(tensor) for name, tensor in self._engine.weights.tensors()}
