"""New weights for the servers: written where they can read them, with something to check them by."""

from pathlib import Path

import numpy as np
import torch

from areal_like.process.run import Run
from areal_like.process.seeds import derive_seed
from areal_like.training.engine import Engine
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.weights.disk import discard, publish
from areal_like.weights.place import publication_root
from areal_like.weights.probe import Probe

PROBE_TOKENS = 16
VERSIONS_KEPT = 3
"""The newest, the one that a server may still be loading, and the one before."""


class Publisher:
    def __init__(self, run: Run, engine: Engine, spans_nodes: bool) -> None:
        self._engine, self._run_id = engine, run.run_id
        self.num_bytes = weight_bytes(engine)
        self.root, self.reason = publication_root(run, spans_nodes, self.num_bytes)
        self._probe = probe_sequence(run.config.seed, engine.vocabulary, engine.world.device)

    def publish(self, version: int) -> Path:
        """All ranks must call it; the first one writes. The folder is complete when this returns."""
        logprobs = self._engine.logprobs([self._probe], temperature=1.0)[0]
        tensors = self._engine.export_weights()
        if not self._engine.world.is_first:
            for _ in tensors:  # each rank takes part in putting the tensors together
                pass
            return self.root
        probe = Probe(probe_ids(self._probe), logprobs.float().tolist())
        folder = publish(self.root, version, tensors, probe, self._run_id)
        discard(self.root, keep=set(range(version - VERSIONS_KEPT + 1, version + 1)))
        return folder


def weight_bytes(engine: Engine) -> int:
    width = torch.finfo(getattr(torch, engine.config.dtype)).bits // 8
    buffers = [buffer for _, buffer in engine.buffers()]
    return engine.num_weights * width + sum(buffer.nbytes - buffer.numel() * width for buffer in buffers)


def probe_sequence(seed: int, vocabulary: int, device: torch.device) -> MicroBatch:
    """The same tokens for all versions of a run; each but the first is predicted."""
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "probe")))
    ids = generator.integers(0, vocabulary, PROBE_TOKENS).astype(np.int32)
    return Sequences(ids, np.ones(PROBE_TOKENS, np.uint8), np.array([PROBE_TOKENS])).micro_batch([0], device)


def probe_ids(probe: MicroBatch) -> list[int]:
    ids: list[int] = [*probe.input_ids_T.tolist(), int(probe.targets_P[-1])]
    return ids
