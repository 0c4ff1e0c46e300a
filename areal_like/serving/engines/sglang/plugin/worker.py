"""Receives new weights in SGLang's schedulers, beside the live ones. Runs in SGLang's environment.

SGLang's own way loads each bucket into the live model: nothing can be checked before, nothing is generated meanwhile,
and a sender that dies leaves a half-loaded model. Here SGLang receives a version when all of it has been verified.
"""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from areal_like.serving.engines.external.plugin.arriving_tensors import Arrival, use_on_this_stream
from areal_like.serving.engines.external.plugin.background_job import GROUP_BROKEN, BackgroundJob, result_of
from areal_like.serving.engines.external.plugin.exchange import ShareExchange
from areal_like.serving.engines.external.plugin.staging_room import StagingRoom, free_on, unused_on
from areal_like.serving.engines.external.plugin.worker_place import place_of
from areal_like.serving.engines.sglang.checksums import fused_tensors
from areal_like.serving.engines.sglang.plugin.calls import staged_group
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.errors import GroupBroken
from areal_like.weights.fingerprint import tensor_hash
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.text_gather import gather_texts


class SchedulerWorker:
    """What one scheduler holds beside the live weights. SGLang takes no memory for its activations before it needs it:
    all that is free when it starts is left to it, but for what the plan has left to new weights."""

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank, self._device, self._group = rank, device, KeptGroup(device)
        self._exchange = ShareExchange(device, self._group)
        self._room = StagingRoom(device, free_on(device) + unused_on(device))
        self._staging: BackgroundJob | None = None
        self._staged: dict[str, tuple[Arrival, dict[str, Tensor]]] = {}
        self._methods: dict[str, Callable[[str], dict[str, Any]]] = {
            "areal_place": lambda _: place_of(self._rank, self._device),
            "areal_stage": self._stage,
            "areal_staged": lambda _: result_of(self._staging),
            "areal_meet": self._meet,
            "areal_discard": self._discard,
        }

    def call(self, method: str, argument: str) -> dict[str, Any]:
        return self._methods[method](argument)

    def take(self, group: str) -> Iterable[tuple[str, Tensor]] | None:
        """The staged version that this name of a group stands for."""
        staged = self._staged.pop(group, None)
        if staged is None:
            return None
        arrival, tensors = staged
        use_on_this_stream(iter(tensors.values()))
        if arrival.is_divided:
            return self._exchange.tensors(arrival.index, tensors)
        return list(tensors.items())

    def _stage(self, message: str) -> dict[str, Any]:
        """Starts to receive weights."""
        self._staged, self._staging = {}, BackgroundJob()
        job = self._staging

        def stage() -> dict[str, Any]:
            began = time.monotonic()
            arrival, tensors = Arrival.of(message, self._rank), {}
            with closing(arrival.tensors(self._rank, self._group, self._room, self._exchange)) as arriving:
                for name, tensor in arriving:
                    tensors[name] = tensor
            expected = {} if arrival.is_divided else self._expected(arrival.index.tensors, tensors)
            if self._staging is job:  # else it was discarded
                self._staged = {staged_group(arrival.index.version): (arrival, tensors)}
            seconds = time.monotonic() - began
            return {"rank": self._rank, "seconds": seconds, "expected": expected, "lacks": self._room.lacks}

        job.start(stage)
        return {}

    def _expected(self, infos: list[TensorInfo], tensors: dict[str, Tensor]) -> dict[str, Any]:
        """SGLang's tensors after the load, as JSON; nothing on a GPU, whose checksums are SGLang's own."""
        if self._device.type != "cpu":
            return {}
        contents = {name: tensor.reshape(-1).view(torch.uint8).numpy() for name, tensor in tensors.items()}
        hashed = [
            info._replace(hash=tensor_hash(tensors[info.name])) if info.has_checksum_only else info for info in infos
        ]
        fused = fused_tensors(hashed, contents)
        return {name: [list(tensor.parts), sorted(tensor.checksums)] for name, tensor in fused.items()}

    def _meet(self, _: str) -> dict[str, Any]:
        """The schedulers that pass on their shares when these are taken, before anything is changed."""
        if any(arrival.is_divided for arrival, _ in self._staged.values()):
            try:
                self._exchange.meet()
            except GroupBroken as broken:
                return {GROUP_BROKEN: str(broken)}
        return {}

    def _discard(self, _: str) -> dict[str, Any]:
        self._staged, self._staging = {}, None
        return {}


_workers: list[SchedulerWorker] = []
"""Of this process, which has one scheduler."""


def call_worker(manager: Any, method: str, argument: str) -> str:
    """The results of all schedulers, as JSON. `manager`: SGLang's object for updates of weights."""
    if not _workers:
        runner = manager.tp_worker.model_runner
        device = torch.device("cuda", runner.gpu_id) if runner.device == "cuda" else torch.device(runner.device)
        _workers.append(SchedulerWorker(runner.tp_rank, device))
    text = json.dumps(_workers[0].call(method, argument))
    return f"[{', '.join(gather_texts(text, manager.tp_cpu_group))}]"


def take_staged(group: str) -> Iterable[tuple[str, Tensor]] | None:
    return _workers[0].take(group) if _workers else None
