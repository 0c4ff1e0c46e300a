"""Stages, loads and verifies new weights in SGLang."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.sections.engines.keys import SGLANG as KEYS
from areal_like.serving.engines.base import NotStaged, Verification, WeightUpdate
from areal_like.serving.engines.external.engine_workers import EngineWorkers
from areal_like.serving.engines.external.external_engine import IncompatibleEngine
from areal_like.serving.engines.external.http_calls import EngineClient, RefusedCall
from areal_like.serving.engines.sglang.checksums import PREFIX, FusedTensor, compare, fused_tensors
from areal_like.serving.engines.sglang.command import MODULE, SENT_TO_ONE
from areal_like.serving.engines.sglang.plugin.calls import ROUTE, call_body, call_results, staged_group
from areal_like.weights.bucket_files import Bytes, read_bucket
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.errors import BadWeights
from areal_like.weights.index import Index

IDLE_TIMEOUT_S = 10
"""Time for SGLang to notice that all its requests have ended."""


class StagedVersion(NamedTuple):
    """`folder`: None if SGLang's schedulers hold the tensors. `expected`: SGLang's tensors after the load, None if its
    checksums cannot be computed."""

    version: int
    folder: Path | None
    expected: dict[str, FusedTensor] | None


class WeightLoader:
    """SGLang loads from files, or what its schedulers have received."""

    def __init__(self, calls: EngineClient) -> None:
        self._calls = calls
        self.workers = EngineWorkers(KEYS.title, self._call_workers, KEYS.memory_key)
        self._staged: StagedVersion | None = None
        self._live: dict[str, FusedTensor] | None = None
        self._was_sent = False
        """Whether the schedulers may hold staged weights."""
        self.shows_checksums = False
        """Whether SGLang's tensors are in main memory: only those checksums can be computed here."""
        self.takes_sent = True
        """Whether its schedulers can be called."""

    async def stage(self, update: WeightUpdate) -> None:
        """Verifies the hashes of files; the schedulers verify those of sent weights."""
        if update.rendezvous is not None:
            if not self.takes_sent:
                raise BadWeights(f"sglang.dp_size: {SENT_TO_ONE}")
            self._was_sent = True
            results = await self.workers.stage(update)
            expected = {
                name: FusedTensor(tuple(parts), frozenset(sums))
                for name, (parts, sums) in results[0]["expected"].items()
            }
        else:
            assert update.folder is not None, "weights are in files or sent"
            expected = await asyncio.to_thread(_verified, update.folder, update.index, self.shows_checksums)
        self._staged = StagedVersion(update.version, update.folder, expected or None)

    async def commit(self, update: WeightUpdate) -> None:
        """SGLang crashes if it loads while a request is still ending, so /flush_cache waits for that first, and drops
        cached prompts."""
        staged = self._staged
        if staged is None or staged.version != update.version:
            raise NotStaged(f"version {update.version} of the weights was not staged here")
        if staged.folder is not None:
            _check_files(staged.folder, update.index)
        try:
            await self._calls.read("POST", f"/flush_cache?timeout={IDLE_TIMEOUT_S}")
        except RefusedCall as refusal:
            raise NotStaged(f"SGLang does not become idle: {refusal}") from refusal
        try:
            if staged.folder is None:
                await self.workers.meet()
                await self._load_received(update.version)
            else:
                body = {"model_path": str(staged.folder), "load_format": "safetensors", "flush_cache": True}
                await self._calls.post("/update_weights_from_disk", body | {"weight_version": str(update.version)})
        except RefusedCall as refusal:
            raise BadWeights(f"version {update.version} of the weights: {refusal}") from refusal
        self._live, self._staged = staged.expected, None
        self._was_sent = self._was_sent and staged.folder is not None

    async def _load_received(self, version: int) -> None:
        """As SGLang loads what its own groups receive: the schedulers give it the staged tensors."""
        await self._calls.post("/begin_weight_update", {})
        try:
            body: dict[str, Any] = {"names": [], "dtypes": [], "shapes": [], "group_name": staged_group(version)}
            await self._calls.post("/update_weights_from_distributed", body | {"weight_version": str(version)})
        finally:
            await self._calls.post("/end_weight_update", {})

    async def discard(self) -> None:
        self._staged = None
        if self._was_sent:
            await self.workers.discard()
            self._was_sent = False

    async def remove_leftovers(self) -> None:
        """What a killed run has left in SGLang: a session, without whose end none can begin, and staged weights."""
        with contextlib.suppress(RefusedCall):  # none is open
            await self._calls.post("/end_weight_update", {})
        await self.workers.discard()

    async def _call_workers(self, method: str, *arguments: str) -> list[dict[str, Any]]:
        """Calls our worker in every scheduler."""
        return call_results((await self._calls.post(ROUTE, call_body(method, *arguments)))["message"])

    async def verify(self, infos: Sequence[TensorInfo]) -> Verification:
        if self._live is None:
            return Verification(uncovered=[info.name for info in infos])
        response = await self._calls.post("/weights_checker", {"action": "checksum"})
        ranks = [rank["checksums"] for rank in response["ranks"]]
        if not all(checksum.startswith(PREFIX) for rank in ranks for checksum in rank.values()):
            raise IncompatibleEngine(f"SGLang reports its own checksums; start it as `python -m {MODULE}`")
        return compare(self._live, ranks, infos)


def _check_files(folder: Path, index: Index) -> None:
    """A missing path would leave SGLang with another model's name; it is checked as late as possible."""
    for bucket in index.buckets:
        path = folder / bucket.file
        if not path.is_file() or path.stat().st_size != bucket.bytes:
            raise NotStaged(f"version {index.version} of the weights: {path} was removed or truncated after the check")


def _verified(folder: Path, index: Index, shows_checksums: bool) -> dict[str, FusedTensor]:
    """Verifies the files. SGLang's tensors after the load, if its checksums can be computed."""
    contents: dict[str, Bytes] = {}
    for bucket in index.buckets:
        content = read_bucket(folder, bucket, index.version)
        if shows_checksums:
            contents |= content
    return fused_tensors(index.tensors, contents) if shows_checksums else {}
