"""How new weights get into vLLM: a class that vLLM mixes into its workers (`--worker-extension-cls`), and whose methods
are called by `/collective_rpc`. Every one takes and gives JSON. Runs in vLLM's environment."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor, nn

from areal_like.serving.vllm.weight_view import ServedTensor, packed_tensors, plain_tensors, repack_tied
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.disk import load_version
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.fingerprint import tensor_hash
from areal_like.weights.index import parse_index
from areal_like.weights.receive import receive_tensors
from areal_like.weights.rendezvous import Rendezvous

if torch.cpu._is_amx_tile_supported():  # Intel's tiles, which a process must ask for before vLLM's kernels use them
    torch.cpu._init_amx()

SLICE_S = 0.005
"""How long generation waits for what is read back at a time."""
REFUSED, GROUP_BROKEN, FAILED = "refused", "group_broken", "failed"


class BackgroundJob:
    """Work in a thread of its own, beside generation."""

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
        except Exception as error:  # nobody sees a thread's end: who asks for the result is told
            self.result = {FAILED: f"{type(error).__name__}: {error}"}


class WorkerState:
    """What one worker holds beside the weights in use: what is staged, and until it is read back, what came last."""

    def __init__(self) -> None:
        self.staging: BackgroundJob | None = None
        self.comparison: WeightComparison | None = None
        self.staged: tuple[int, dict[str, Tensor]] | None = None
        self.newest: dict[str, Tensor] = {}
        self.signed_zeros: dict[str, str] = {}
        """Tensors in use with a -0 in them, which cannot be read back to the bit, and the hashes that they have."""
        self.turn = 0


class WeightComparison:
    """Compares what is in use with what was published: what lies open in a thread, and what is packed bit by bit."""

    def __init__(self, standby: WorkerState, model: nn.Module, published: list[TensorInfo]) -> None:
        self._standby = standby
        self._infos = {info.name: info for info in published}
        self._hashes: dict[str, str] = {}
        self._wrong: dict[str, str] = {}
        shapes = {info.name: info.shape for info in published}
        self._packed = packed_tensors(model, shapes, standby.turn)
        self._open = BackgroundJob()
        self._open.start(lambda: self._look(plain_tensors(model, shapes)))

    def step(self) -> dict[str, Any]:
        """In the worker's own thread, between two steps."""
        ends = time.monotonic() + SLICE_S
        for name, seen in self._packed:
            self._compare(name, seen)
            self._standby.turn += 1
            if time.monotonic() > ends:
                return {"busy": True}
        result = self._open.result
        if result:
            return result
        self._standby.newest = {}
        return {"hashes": self._hashes, "wrong": self._wrong}

    def _look(self, tensors: Iterator[tuple[str, ServedTensor]]) -> dict[str, Any]:
        for name, seen in tensors:
            self._compare(name, seen)
        return {}

    def _compare(self, name: str, seen: ServedTensor) -> None:
        standby, wanted, found = self._standby, self._infos[name].hash, tensor_hash(seen.tensor)
        if found != wanted and seen.signs_lost:
            newest = standby.newest.get(name)
            if newest is not None and tensor_hash(newest) == wanted and torch.equal(newest, seen.tensor):
                standby.signed_zeros[name] = wanted
            if standby.signed_zeros.get(name) == wanted:
                return
        self._hashes[name] = found
        if found != wanted:
            self._wrong[name] = f"what is in use (hash {found}) is not what was published ({wanted})"


class WorkerExtension:
    """Names begin with `areal_`, as they stand among those of vLLM's worker."""

    areal_standby: WorkerState | None = None

    def areal_stage(self, said: str) -> dict[str, Any]:
        """Begins to bring weights near: from a folder, or from the trainers themselves."""
        standby, order, job = self._areal, orjson.loads(said), BackgroundJob()
        standby.staged, standby.staging = None, job
        rank: int = self.rank  # type: ignore[attr-defined]

        def stage() -> dict[str, Any]:
            version, tensors = _tensors(order, rank)
            if standby.staging is job:  # else it is not wanted any more
                standby.staged = version, tensors
            return {"staged": version}

        job.start(stage)
        return {}

    def areal_staged(self) -> dict[str, Any]:
        """`busy` until everything is here."""
        return _result(self._areal.staging)

    def areal_commit(self, version: str) -> dict[str, Any]:
        """Makes the staged weights the live ones."""
        standby = self._areal
        if standby.staged is None or standby.staged[0] != int(version):
            return {REFUSED: f"version {version} of the weights is not staged"}
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        runner.reload_weights(weights_iterator=iter(standby.staged[1].items()))
        repack_tied(runner.get_model())
        standby.newest, standby.staged = standby.staged[1], None
        standby.signed_zeros.clear()
        return {}

    def areal_read_back(self, infos: str) -> dict[str, Any]:
        """Begins to compare what is in use with what was published."""
        published = [TensorInfo(name, dtype, tuple(shape), hash) for name, dtype, shape, hash in orjson.loads(infos)]
        model: Any = self.model_runner.get_model()  # type: ignore[attr-defined]
        self._areal.comparison = WeightComparison(self._areal, model, published)
        return {}

    def areal_seen(self) -> dict[str, Any]:
        """`busy` until everything was looked at; each call looks at some of it."""
        comparison = self._areal.comparison
        return comparison.step() if comparison is not None else {REFUSED: "nothing is being read back"}

    def areal_discard(self) -> dict[str, Any]:
        self._areal.staged = self._areal.staging = None
        return {}

    @property
    def _areal(self) -> WorkerState:
        if self.areal_standby is None:
            self.areal_standby = WorkerState()
        return self.areal_standby


def _result(job: BackgroundJob | None) -> dict[str, Any]:
    return {REFUSED: "it is not wanted any more"} if job is None else job.result


def _tensors(order: dict[str, Any], rank: int) -> tuple[int, dict[str, Tensor]]:
    """All of a version, when the hash of each was right. What lies in shared memory stays there."""
    index = parse_index(order["index"], "the index that was sent")
    if order["meeting"] is not None:
        meeting = Rendezvous(**order["meeting"])
        sent = receive_tensors(meeting, meeting.first_rank + rank, index)
        return index.version, {name: tensor.clone() for name, tensor in sent}
    expected = {info.name: (info.shape, getattr(torch, info.dtype)) for info in index.tensors}
    return index.version, load_version(Path(order["folder"]), expected, index.version - 1).tensors
