"""Broadcast without files: the first rank copies the weights, and the copy is sent during the next step. It stays on a
GPU that has room for it, and is identified by checksums computed there; else it is in main memory, and is hashed."""

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from areal_like.process.identity import CONTROLLER, KEEPS_COPY_ON_GPU, SERVER
from areal_like.process.patience import answer_limit
from areal_like.process.run import Run
from areal_like.training.transports.base import Completion
from areal_like.training.transports.sender import WeightSender
from areal_like.weights.collective import BroadcastHost
from areal_like.weights.flat_buckets import copy_weights
from areal_like.weights.gpu_ids import gpu_ids
from areal_like.weights.index import dump_index
from areal_like.weights.probe import Probe

if TYPE_CHECKING:
    from areal_like.training.controller_client import TrainerControllerClient
    from areal_like.training.engine import TrainEngine


class CollectiveTransport:
    takes_adapter = False
    completes_in_background = True

    def __init__(self, run: Run, engine: "TrainEngine", controller: "TrainerControllerClient") -> None:
        self._run_id, self._devices = run.run_id, gpu_ids(engine.world.device)
        self._stays_on_gpu = engine.world.device.type == "cuda" and bool(os.environ.get(KEEPS_COPY_ON_GPU))
        self.reason = "a broadcast from the trainer to the servers, without files (actor.weight_update_mode)"
        if engine.world.device.type == "cuda":
            self.reason += f"; they are copied {'on the GPU' if self._stays_on_gpu else 'to main memory'}"
        self._sender: WeightSender | None = None
        if engine.world.is_first:
            broadcast = run.config.weights.broadcast
            try:
                self._host = BroadcastHost(broadcast.host, broadcast.port)
            except OSError as fault:
                at = f"{broadcast.host}:{broadcast.port}"
                message = f"cannot listen on {at}: {fault.strerror or fault}; choose another, or port 0"
                raise ValueError(f"weights.broadcast.port: {message}") from fault
            self._sender = WeightSender(
                self._host, controller.ask_once, answer_limit(run.config, SERVER, CONTROLLER), engine.world.device
            )

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]], probe: Probe) -> Completion:
        assert self._sender is not None, "only the first rank publishes"
        sender = self._sender
        buffer = sender.take_newest() if self._stays_on_gpu else sender.take_buffer()
        copy = copy_weights(tensors, buffer, stays_on_gpu=self._stays_on_gpu)

        def complete() -> dict[str, Any]:
            weights = copy.hashed(version, probe, self._run_id)
            sender.offer(weights)
            return {
                "version": version,
                "transport": "collective",
                "folder": None,
                "bytes": weights.num_bytes,
                "index": dump_index(weights.index),
                "meeting": {"host": self._host.host, "port": self._host.port, "devices": self._devices},
            }

        return complete

    def keep(self, versions: Sequence[int]) -> None:
        """The trainer has the newest version alone to send."""

    def close(self, early: bool) -> None:
        if self._sender is not None:
            self._sender.close(early)
            self._host.close()
