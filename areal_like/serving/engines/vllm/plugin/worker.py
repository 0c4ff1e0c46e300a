"""Loads new weights in vLLM's workers: vLLM mixes the class into them (`--worker-extension-cls`), and `/collective_rpc`
calls its methods, with JSON arguments and results. Runs in vLLM's environment."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import torch
from torch import Tensor, nn

from areal_like.serving.engines.vllm.plugin.packed_layers import PackedWeights, WeightPacker
from areal_like.serving.engines.vllm.plugin.weight_view import ServedTensor, packed_tensors, plain_tensors, repack_tied
from areal_like.weights.bucket_files import iterate_bucket
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.device_checksum import checksums, uses_checksums
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.fingerprint import dtype_name, tensor_hash
from areal_like.weights.flat_buckets import as_tensor
from areal_like.weights.gpu_ids import gpu_ids
from areal_like.weights.index import Index, parse_index, read_index
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.own_stream import own_stream
from areal_like.weights.receive import receive_tensors
from areal_like.weights.rendezvous import Rendezvous
from areal_like.weights.transfer_path import GLOO

if torch.cpu._is_amx_tile_supported():  # a process must request AMX tiles before vLLM's kernels use them
    torch.cpu._init_amx()

RESERVE_BYTES = 256 * 2**20
"""GPU memory that staged weights leave free."""
Tensors = Generator[tuple[str, Tensor], None, None]
SLICE_S = 0.005
"""Time per call during which generation waits for tensors that are read back."""
REFUSED, GROUP_BROKEN, FAILED = "refused", "group_broken", "failed"


class BackgroundJob:
    """Work in a thread, during generation."""

    def __init__(self) -> None:
        self.result: dict[str, Any] = {"busy": True}

    def start(self, work: Callable[[], dict[str, Any]]) -> None:
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], dict[str, Any]]) -> None:
        try:
            self.result = work()
        except BadWeights as bad:
            self.result = {REFUSED: str(bad)}
        except GroupBroken as broken:
            self.result = {GROUP_BROKEN: str(broken)}
        except Exception as error:  # `_results` reports it
            self.result = {FAILED: f"{type(error).__name__}: {error}"}


class LoadedVersion(NamedTuple):
    """`packed`: in the form in which the model computes with them, None if vLLM itself must load the tensors."""

    version: int
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
                return {"busy": True}
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
        state, published = self._state, self._infos[name].hash
        actual = served_hash(served.tensor, self._infos[name])
        if actual != published and served.signs_lost:
            newest = state.newest.get(name)
            if newest is not None and tensor_hash(newest) == published and torch.equal(newest, served.tensor):
                state.signed_zeros[name] = published
            if state.signed_zeros.get(name) == published:
                return
        self._hashes[name] = actual
        if actual != published:
            self._wrong[name] = f"the served tensor (hash {actual}) is not the published one ({published})"


def served_hash(tensor: Tensor, info: TensorInfo) -> str:
    """On a GPU the published hash, if the tensor has the checksum that was published with it: hashing it would take a
    copy to the host."""
    if info.checksum and uses_checksums(tensor.device) and tensor.shape == info.shape:
        (checksum,) = checksums([(info.name, tensor)]).values()
        return info.hash if checksum == info.checksum and dtype_name(tensor.dtype) == info.dtype else checksum
    return tensor_hash(tensor)


class WorkerExtension:
    """Names begin with `areal_`, as the class becomes part of vLLM's worker."""

    areal_state: WorkerState | None = None

    def areal_stage(self, message: str) -> dict[str, Any]:
        """Starts to load weights beside the live ones: from a folder, or sent by the trainer."""
        state, update, job = self._areal, orjson.loads(message), BackgroundJob()
        state.staged, state.staging = None, job
        rank: int = self.rank  # type: ignore[attr-defined]
        state.group = group = state.group or KeptGroup(self._areal_device)
        model: nn.Module = self.model_runner.get_model()  # type: ignore[attr-defined]

        def stage() -> dict[str, Any]:
            began = time.monotonic()
            index, tensors = parse_index(update["index"], "the index that was sent"), {}
            with WeightPacker(model) as packer, closing(_tensors(update, index, rank, group)) as received:
                for name, tensor in received:
                    tensors[name] = tensor
                    packer.add(name, tensor)
                staged = LoadedVersion(index.version, tensors, packer.packed())
            if state.staging is job:  # else it was discarded
                state.staged = staged
            return {"staged": index.version, "seconds": time.monotonic() - began}

        job.start(stage)
        return {}

    def areal_staged(self) -> dict[str, Any]:
        """`busy` until all weights are loaded."""
        return _result(self._areal.staging)

    def areal_commit(self, version: str) -> dict[str, Any]:
        """Makes the staged weights live."""
        state = self._areal
        staged = state.staged
        if staged is None or staged.version != int(version):
            return {REFUSED: f"version {version} of the weights is not staged"}
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        for tensor in staged.tensors.values():
            if tensor.is_cuda:  # made on another stream: its memory must not be used again before this one has read it
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        if staged.packed is None:
            runner.reload_weights(weights_iterator=iter(staged.tensors.items()))
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

    def areal_devices(self) -> dict[str, Any]:
        """The GPU of this worker, if it computes on one."""
        rank: int = self.rank  # type: ignore[attr-defined]
        return {"rank": rank, "devices": gpu_ids(self._areal_device)}

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


def _result(job: BackgroundJob | None) -> dict[str, Any]:
    return {REFUSED: "the staged weights were discarded"} if job is None else job.result


def _tensors(update: dict[str, Any], index: Index, rank: int, group: KeptGroup) -> Tensors:
    """All tensors of a version, each as soon as its content is verified. Those in shared memory stay there."""
    if update["meeting"] is not None:
        yield from _received(Rendezvous(**update["meeting"]), index, rank, group)
        return
    folder = Path(update["folder"])
    if read_index(folder) != index:
        raise BadWeights(
            f"version {index.version} of the weights: {folder} has another index than the one that was sent"
        )
    for bucket in index.buckets:
        for info, content in iterate_bucket(folder, bucket, index.version):
            yield info.name, as_tensor(info, torch.from_numpy(content))


def _received(rendezvous: Rendezvous, index: Index, rank: int, group: KeptGroup) -> Iterator[tuple[str, Tensor]]:
    """Copies of sent tensors: on the GPU if they come there and it has room for all, else in main memory."""
    stays = rendezvous.backend == GLOO or has_room_on(group.device, sum(info.nbytes for info in index.tensors))
    with own_stream(group.device):
        sent = receive_tensors(rendezvous, rendezvous.first_rank + rank, index, group)
        with closing(sent):
            for name, tensor in sent:
                try:
                    copy = tensor.clone() if stays else tensor.cpu()
                except torch.OutOfMemoryError as fault:  # used by vLLM since; the next transfer uses main memory
                    raise GroupBroken(f"no memory on the GPU for {name}") from fault
                yield name, copy


def has_room_on(device: torch.device, num_bytes: int) -> bool:
    """Whether a GPU has so much memory that nothing has reserved."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return free >= num_bytes + RESERVE_BYTES
