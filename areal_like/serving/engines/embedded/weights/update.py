"""New weights of the embedded engine: loaded during generation, swapped between two steps, compared, and taken back if
the trainer computes something else."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import NamedTuple

from torch import Tensor

from areal_like.process.errors import DamagedWeights
from areal_like.serving.engines.base import NotApplied, NotStaged, SwapResult, Verification, WeightUpdate
from areal_like.serving.engines.embedded.async_engine import AsyncLLMEngine
from areal_like.serving.engines.embedded.weights.adapters import adapter_tensors
from areal_like.serving.engines.embedded.weights.batched_lora import ServedAdapter
from areal_like.serving.engines.embedded.weights.double_buffer import beside_generation
from areal_like.weights.device_checksum import checksums, uses_checksums
from areal_like.weights.disk import load_version
from areal_like.weights.errors import BadWeights
from areal_like.weights.fingerprint import compare, dtype_name, tensor_hashes
from areal_like.weights.index import Index
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.probe import Probe, check_probe, precision
from areal_like.weights.receive import receive_tensors

Hashes = dict[str, str]


class StagedWeights(NamedTuple):
    """In the standby buffer, or as an adapter. `hashes`: those that the tensors must have in the model's precision;
    `marks`: what is compared once they are in use, and is computed by `marks_of`."""

    version: int
    hashes: Hashes
    marks: Hashes
    marks_of: Callable[[Iterable[tuple[str, Tensor]]], Hashes]
    adapter: ServedAdapter | None


class WeightSwapper:
    """One version at a time. A fault before the swap is a ValueError.

    Marks are hashes on a CPU, and checksums on a GPU: there a swap waits for no copy of the weights to the host. On a
    CPU they are checksums too if these alone were published. They are the published ones, or computed once the staged
    weights were read back and had the published hashes.
    """

    def __init__(self, async_engine: AsyncLLMEngine) -> None:
        self._async_engine, self._engine = async_engine, async_engine.engine
        device = self._engine.weights.device
        self._precision = precision(dtype_name(self._engine.dtype), on_gpu=device.type != "cpu")
        self._uses_checksums = uses_checksums(device)
        self._staged: StagedWeights | None = None
        self._group = KeptGroup(device)

    async def stage(self, update: WeightUpdate) -> None:
        """Raises GroupBroken if the transfer failed."""
        self._staged = None
        self._staged = await asyncio.to_thread(self._load, update)

    def discard(self) -> None:
        self._staged = None

    async def commit(self, update: WeightUpdate, probe: Probe | None) -> SwapResult:
        """Raises NotApplied if the old weights serve on, DamagedWeights if those in this process are damaged."""
        staged = self._staged
        if staged is None or staged.version != update.version:
            raise NotStaged(f"version {update.version} of the weights was not staged here, or is no longer")
        try:
            result = await self._async_engine.call(lambda: self._swap(staged, probe))
        except ValueError as refused:
            raise NotApplied(str(refused)) from refused
        self._staged = None
        return result

    async def all_hashes(self) -> Hashes:
        """Of every served tensor, those of the run's adapter included. No update runs meanwhile: on a GPU, where this
        takes seconds, generation goes on."""
        if self._uses_checksums:
            return await asyncio.to_thread(self._read_hashes)
        return await self._async_engine.call(self._read_hashes)

    def _read_hashes(self) -> Hashes:
        current = self._engine.adapters.current
        with beside_generation(self._engine.weights.device):
            of_model = tensor_hashes(self._engine.weights.tensors())
            return of_model | tensor_hashes(adapter_tensors(current) if current is not None else ())

    def _load(self, update: WeightUpdate) -> StagedWeights:
        version, engine = update.version, self._engine
        if update.adapter is not None:
            files, subject = update.adapter.files, f"version {version} of the weights"
            adapter = engine.adapters.make(files, f"v{version}", subject, version, str(update.folder))
            hashes = engine.adapters.expected_hashes(files)
            if self._uses_checksums:
                return StagedWeights(version, hashes, engine.adapters.expected_checksums(files), checksums, adapter)
            return StagedWeights(version, hashes, hashes, tensor_hashes, adapter)
        if (rendezvous := update.rendezvous) is not None:
            with closing(receive_tensors(rendezvous, rendezvous.first_rank, update.index, self._group)) as tensors:
                engine.weights.fill(tensors)
        else:
            assert update.folder is not None, "weights are in files or sent"
            weights = load_version(update.folder, engine.weights.expected(), version - 1)
            if weights.version != version:
                raise BadWeights(f"{update.folder} has become version {weights.version} of the weights")
            engine.weights.stage(weights.tensors)
        hashes = {info.name: info.hash for info in update.index.tensors}
        if self._uses_checksums or any(info.has_checksum_only for info in update.index.tensors):
            return StagedWeights(version, hashes, self._staged_checksums(update.index), checksums, None)
        return StagedWeights(version, hashes, hashes, tensor_hashes, None)

    def _staged_checksums(self, index: Index) -> Hashes:
        """Of the standby buffer, which must hold what was published."""
        published = {info.name: info.checksum for info in index.tensors}
        with beside_generation(self._engine.weights.device):
            staged = checksums(self._engine.weights.staged())
            if all(published.values()):
                compare(published, staged, index.version)
            else:
                hashes = {info.name: info.hash for info in index.tensors}
                compare(hashes, tensor_hashes(self._engine.weights.staged()), index.version)
        return staged

    def _swap(self, staged: StagedWeights, probe: Probe | None) -> SwapResult:
        """In the engine's thread, between two steps."""
        began = time.perf_counter()
        if staged.adapter is None:
            logprobs = (
                self._engine.swap(staged.version, lambda: self._verify(staged, self._engine.weights.tensors(), probe))
                or []
            )
        else:
            logprobs = self._verify(staged, adapter_tensors(staged.adapter), probe)
            self._engine.serve_adapter(staged.adapter, staged.version)
        return SwapResult(time.perf_counter() - began, Verification(staged.hashes), logprobs)

    def _verify(self, staged: StagedWeights, served: Iterable[tuple[str, Tensor]], probe: Probe | None) -> list[float]:
        """Compares the tensors in use and computes the probe; returns its log-probabilities."""
        try:
            compare(staged.marks, staged.marks_of(served), staged.version)
        except BadWeights as damage:  # what was read had the right hashes, so this process has changed it
            raise DamagedWeights(staged.version, str(damage)) from damage
        if probe is None:
            return []
        logprobs = self._engine.logprobs(probe.token_ids, staged.adapter)
        check_probe(probe, logprobs, self._precision)
        return logprobs
