"""Through files: in memory shared by trainer and servers, or in the run directory.

The weights are copied into memory that is kept for all versions, and hashed and written during the next step. From a
CPU into shared memory they are written at once, as that is nothing but a copy.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from areal_like.process.run import Run
from areal_like.training.transports.base import Completion
from areal_like.weights.buckets import MAX_BUCKET_BYTES
from areal_like.weights.disk import publish_weights, remove_versions, write_weights
from areal_like.weights.flat_buckets import FlatWeights, copy_weights
from areal_like.weights.probe import Probe
from areal_like.weights.publication_root import publication_root

if TYPE_CHECKING:
    from areal_like.training.engine import TrainEngine

VERSIONS_KEPT = 3
"""The newest, one that a server may still be loading, and one before."""
BACKGROUND = "they are copied, and written during the next step"


class DiskTransport:
    takes_adapter = False

    def __init__(self, run: Run, engine: "TrainEngine") -> None:
        self._run_id, self.num_bytes = run.run_id, weight_bytes(engine)
        self.root, reason = publication_root(run, run.config.cluster.n_nodes > 1, self.num_bytes)
        self.completes_in_background = engine.world.device.type != "cpu" or self.root != run.memory
        self.reason = f"{reason}; {BACKGROUND}" if self.completes_in_background else reason
        self._free: FlatWeights | None = None

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]], probe: Probe) -> Completion:
        if not self.completes_in_background:
            folder = publish_weights(self.root, version, tensors, probe, self._run_id)
            return lambda: self._published(version, folder)
        buffer, self._free = self._free, None
        copy = copy_weights(tensors, buffer, MAX_BUCKET_BYTES)

        def complete() -> dict[str, Any]:
            weights = copy.hashed(version, probe, self._run_id)
            folder = write_weights(self.root, weights)
            self._free = weights
            return self._published(version, folder)

        return complete

    def _published(self, version: int, folder: Path) -> dict[str, Any]:
        remove_versions(self.root, keep=set(range(version - VERSIONS_KEPT + 1, version + 1)))
        return {"version": version, "transport": "disk", "folder": str(folder), "bytes": self.num_bytes}

    def close(self, early: bool) -> None:
        """The files are kept until the run has ended."""


def weight_bytes(engine: "TrainEngine") -> int:
    width = torch.finfo(getattr(torch, engine.config.dtype)).bits // 8
    buffers = [buffer for _, buffer in engine.buffers()]
    return engine.num_weights * width + sum(buffer.nbytes - buffer.numel() * width for buffer in buffers)
