"""Through files: in memory shared by trainer and servers, or in the run directory."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from areal_like.process.run import Run
from areal_like.weights.disk import publish_weights, remove_versions
from areal_like.weights.probe import Probe
from areal_like.weights.publication_root import publication_root

if TYPE_CHECKING:
    from areal_like.training.engine import TrainEngine

VERSIONS_KEPT = 3
"""The newest, one that a server may still be loading, and one before."""


class DiskTransport:
    takes_adapter = False

    def __init__(self, run: Run, engine: "TrainEngine") -> None:
        self._run_id, self.num_bytes = run.run_id, weight_bytes(engine)
        self.root, self.reason = publication_root(run, run.config.cluster.n_nodes > 1, self.num_bytes)

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]], probe: Probe) -> dict[str, Any]:
        folder = publish_weights(self.root, version, tensors, probe, self._run_id)
        remove_versions(self.root, keep=set(range(version - VERSIONS_KEPT + 1, version + 1)))
        return {"version": version, "transport": "disk", "folder": str(folder), "bytes": self.num_bytes}

    def close(self, early: bool) -> None:
        """The files are kept until the run has ended."""


def weight_bytes(engine: "TrainEngine") -> int:
    width = torch.finfo(getattr(torch, engine.config.dtype)).bits // 8
    buffers = [buffer for _, buffer in engine.buffers()]
    return engine.num_weights * width + sum(buffer.nbytes - buffer.numel() * width for buffer in buffers)
