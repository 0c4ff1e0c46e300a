"""Through files: in memory shared by trainer and servers, or in the run directory.

The weights are copied into memory that is kept for all versions, and hashed and written during the next step. From a
CPU into shared memory they are written at once, as that is nothing but a copy.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from areal_like.process.run import Run
from areal_like.training.transports.base import Completion
from areal_like.training.transports.kept_versions import KeptVersions
from areal_like.weights.buckets import MAX_BUCKET_BYTES
from areal_like.weights.disk import publish_weights, write_weights
from areal_like.weights.flat_buckets import FlatWeights, copy_weights
from areal_like.weights.probe import Probe

if TYPE_CHECKING:
    from areal_like.training.engine import TrainEngine

BACKGROUND = "they are copied, and written during the next step"


class DiskTransport:
    takes_adapter = False

    def __init__(self, run: Run, engine: "TrainEngine", require: Callable[[], None]) -> None:
        self._run_id, self.num_bytes = run.run_id, weight_bytes(engine)
        self._kept, self._require = KeptVersions(run, self.num_bytes), require
        self.root, self.reason = self._kept.root, self._kept.reason
        self.completes_in_background = engine.world.device.type != "cpu" or self.root != run.memory
        if self.completes_in_background:
            self.reason += f"; {BACKGROUND}"
        self._free: FlatWeights | None = None

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]], probe: Probe) -> Completion:
        if not self.completes_in_background:
            folder = publish_weights(self.root, version, tensors, probe, self._run_id, require=self._require)
            return lambda: self._published(version, folder)
        buffer, self._free = self._free, None
        copy = copy_weights(tensors, buffer, MAX_BUCKET_BYTES)

        def complete() -> dict[str, Any]:
            self._require()
            weights = copy.hashed(version, probe, self._run_id)
            folder = write_weights(self.root, weights, self._require)
            self._free = weights
            return self._published(version, folder)

        return complete

    def _published(self, version: int, folder: Path) -> dict[str, Any]:
        self._kept.remove_others(version, self._require)
        return {"version": version, "transport": "disk", "folder": str(folder), "bytes": self.num_bytes}

    def keep(self, versions: Sequence[int]) -> None:
        self._kept.keep(versions)

    def close(self, early: bool) -> None:
        """The files are kept until the run has ended."""


def weight_bytes(engine: "TrainEngine") -> int:
    width = torch.finfo(getattr(torch, engine.config.dtype)).bits // 8
    buffers = [buffer for _, buffer in engine.buffers()]
    return engine.num_weights * width + sum(buffer.nbytes - buffer.numel() * width for buffer in buffers)
