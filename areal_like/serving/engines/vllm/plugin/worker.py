"""Loads new weights in vLLM's workers: vLLM mixes the class into them (`--worker-extension-cls`), and `/collective_rpc`
calls its methods, with JSON arguments and results. Runs in vLLM's environment."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import orjson
import torch
from torch import Tensor, nn

from areal_like.serving.engines.engine_site import SPARE_BYTES
from areal_like.serving.engines.external.plugin.arriving_tensors import Arrival, use_on_this_stream
from areal_like.serving.engines.external.plugin.background_job import (
    BUSY,
    GROUP_BROKEN,
    REFUSED,
    BackgroundJob,
    result_of,
)
from areal_like.serving.engines.external.plugin.exchange import ShareExchange
from areal_like.serving.engines.external.plugin.staging_room import StagingRoom
from areal_like.serving.engines.external.plugin.worker_place import place_of
from areal_like.serving.engines.vllm.plugin.packed_layers import PackedWeights, WeightPacker
from areal_like.serving.engines.vllm.plugin.prompt_logits import mend_prompt_logits
from areal_like.serving.engines.vllm.plugin.weight_view import ServedTensor, packed_tensors, plain_tensors, repack_tied
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.device_checksum import checksums, uses_checksums
from areal_like.weights.errors import GroupBroken
from areal_like.weights.fingerprint import dtype_name, tensor_hash
from areal_like.weights.kept_group import KeptGroup

if torch.cpu._is_amx_tile_supported():  # a process must request AMX tiles before vLLM's kernels use them
    torch.cpu._init_amx()
if not torch.cuda.is_available():
    mend_prompt_logits()

SLICE_S = 0.005
"""Time per call during which generation waits for tensors that are read back."""


class LoadedVersion(NamedTuple):
    """`packed`: in the form in which the model computes with them, None if vLLM itself must load the tensors."""

    arrival: Arrival
    tensors: dict[str, Tensor]
    packed: PackedWeights | None


class WorkerState:
    """What a worker holds beside the live weights: staged ones, and until they are read back the newest tensors and the
    kernels that were replaced."""

    def __init__(self) -> None:
        self.staging: BackgroundJob | None = None
        self.comparison: WeightComparison | None = None
        self.staged: LoadedVersion | None = None
        self.newest: dict[str, Tensor] = {}
        self.replaced: PackedWeights | None = None
        self.signed_zeros: dict[str, str] = {}
        """Served tensors with a -0, which cannot be read back exactly, and their hashes."""
        self.turn = 0
        self.group: KeptGroup | None = None
        self.exchange: ShareExchange | None = None
        self.room: StagingRoom | None = None


class WeightComparison:
    """Compares the served weights with the published ones: readable tensors in a thread, packed ones in slices."""

    def __init__(self, state: WorkerState, model: nn.Module, published: list[TensorInfo]) -> None:
        self._state = state
        self._infos = {info.name: info for info in published}
        self._hashes: dict[str, str] = {}
        self._wrong: dict[str, str] = {}
        shapes = {info.name: info.shape for info in published}
        self._packed = packed_tensors(model, shapes, state.turn)
        self._plain = BackgroundJob()
        self._plain.start(lambda: self._compare_all(plain_tensors(model, shapes)))

    def step(self) -> dict[str, Any]:
        """Compares for SLICE_S, in the worker's own thread and between two steps."""
        ends = time.monotonic() + SLICE_S
        for name, served in self._packed:
            self._compare(name, served)
            self._state.turn += 1
            if time.monotonic() > ends:
                return {BUSY: True}
        result = self._plain.result
        if result:
            return result
        self._state.newest = {}
        return {"hashes": self._hashes, "wrong": self._wrong}

    def _compare_all(self, tensors: Iterator[tuple[str, ServedTensor]]) -> dict[str, Any]:
        for name, served in tensors:
            self._compare(name, served)
        self._state.replaced = None
        return {}

    def _compare(self, name: str, served: ServedTensor) -> None:
        state, info = self._state, self._infos[name]
        published, actual = info.hash, served_hash(served.tensor, info)
        if actual != published and served.signs_lost:
            newest = state.newest.get(name)
            if newest is not None and served_hash(newest, info) == published and torch.equal(newest, served.tensor):
                state.signed_zeros[name] = published
            if state.signed_zeros.get(name) == published:
                return
        self._hashes[name] = actual
        if actual != published:
            self._wrong[name] = f"the served tensor (hash {actual}) is not the published one ({published})"


def served_hash(tensor: Tensor, info: TensorInfo) -> str:
    """The published hash, if the tensor has the checksum that was published with it: on a GPU, where hashing it would
    take a copy to the host, and if nothing else was published."""
    by_checksum = info.has_checksum_only or (info.checksum and uses_checksums(tensor.device))
    if by_checksum and tensor.shape == info.shape:
        (checksum,) = checksums([(info.name, tensor)]).values()
        return info.hash if checksum == info.checksum and dtype_name(tensor.dtype) == info.dtype else checksum
    return tensor_hash(tensor)


def budget_left(worker: Any, device: torch.device) -> int:
    """Bytes of the GPU that vLLM asked for and does not hold at the moment: it frees its activations after the profiled
    run, and takes them again in a prefill."""
    if device.type != "cuda":
        return 0
    return max(0, int(worker.requested_memory) - torch.cuda.memory_reserved(device))


class WorkerExtension:
    """Names begin with `areal_`, as the class becomes part of vLLM's worker."""

    areal_state: WorkerState | None = None

    def areal_stage(self, message: str) -> dict[str, Any]:
        """Starts to load weights beside the live ones: from a folder, or sent by the trainer."""
        state, job = self._areal, BackgroundJob()
        state.staged, state.staging = None, job
        rank: int = self.rank  # type: ignore[attr-defined]
        state.group = group = state.group or KeptGroup(self._areal_device)
        state.exchange = exchange = state.exchange or ShareExchange(self._areal_device, group)
        reserve = SPARE_BYTES + budget_left(self, self._areal_device)
        state.room = room = state.room or StagingRoom(self._areal_device, reserve)
        model: nn.Module = self.model_runner.get_model()  # type: ignore[attr-defined]

        def stage() -> dict[str, Any]:
            began = time.monotonic()
            arrival, tensors = Arrival.of(message, rank), {}
            with WeightPacker(model) as packer, closing(arrival.tensors(rank, group, room, exchange)) as arriving:
                for name, tensor in arriving:
                    tensors[name] = tensor
                    packer.add(name, tensor)
                staged = LoadedVersion(arrival, tensors, packer.packed())
            if state.staging is job:  # else it was discarded
                state.staged = staged
            return {"rank": rank, "seconds": time.monotonic() - began, "lacks": room.lacks}

        job.start(stage)
        return {}

    def areal_staged(self) -> dict[str, Any]:
        """`busy` until all weights are loaded."""
        return result_of(self._areal.staging)

    def areal_commit(self, version: str, verified: str = "") -> dict[str, Any]:
        """Makes the staged weights live. `verified`: the ranks of the workers that verified theirs, if there are
        several."""
        state = self._areal
        staged = state.staged
        if staged is None or staged.arrival.index.version != int(version):
            return {REFUSED: f"version {version} of the weights is not staged"}
        own: int = self.rank  # type: ignore[attr-defined]
        if missing := staged.arrival.unverified(orjson.loads(verified) if verified else [own]):
            return {REFUSED: f"version {version} of the weights: worker {missing[0]} did not verify its share"}
        if staged.arrival.is_divided:
            assert state.exchange is not None, "they were staged"
            try:
                state.exchange.meet()
            except GroupBroken as broken:
                return {GROUP_BROKEN: f"version {version} of the weights: {broken}"}
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        use_on_this_stream(iter(staged.tensors.values()))
        if staged.packed is None:
            arrival, tensors = staged.arrival, iter(staged.tensors.items())
            if arrival.is_divided and state.exchange is not None:
                tensors = state.exchange.tensors(arrival.index, staged.tensors)
            runner.reload_weights(weights_iterator=tensors)
            repack_tied(runner.get_model())
        else:
            staged.packed.exchange()
            runner.reset_lora_state()
            runner.reset_encoder_cache()
            runner.reset_mm_cache()
        state.newest, state.replaced, state.staged = staged.tensors, staged.packed, None
        state.signed_zeros.clear()
        return {}

    def areal_read_back(self, infos: str) -> dict[str, Any]:
        """Starts to compare the served weights with the published ones."""
        published = [TensorInfo(name, dtype, tuple(shape), *rest) for name, dtype, shape, *rest in orjson.loads(infos)]
        model: Any = self.model_runner.get_model()  # type: ignore[attr-defined]
        self._areal.comparison = WeightComparison(self._areal, model, published)
        return {}

    def areal_seen(self) -> dict[str, Any]:
        """`busy` until all tensors are compared; each call compares some of them."""
        comparison = self._areal.comparison
        return comparison.step() if comparison is not None else {REFUSED: "nothing is being read back"}

    def areal_place(self) -> dict[str, Any]:
        """The machine and the GPU of this worker, if it computes on one."""
        rank: int = self.rank  # type: ignore[attr-defined]
        return place_of(rank, self._areal_device)

    def areal_discard(self) -> dict[str, Any]:
        self._areal.staged = self._areal.staging = None
        return {}

    @property
    def _areal_device(self) -> torch.device:
        device: torch.device = self.device  # type: ignore[attr-defined]
        return device

    @property
    def _areal(self) -> WorkerState:
        if self.areal_state is None:
            self.areal_state = WorkerState()
        return self.areal_state
