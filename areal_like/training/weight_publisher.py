"""New weights for the servers: put together by all ranks, with something to check them by, and passed on."""

import numpy as np
import torch

from areal_like.process.run import Run
from areal_like.process.seeds import derive_seed
from areal_like.training.controller_client import TrainerControllerClient
from areal_like.training.engine import TrainEngine
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.transports import open_transport
from areal_like.weights.probe import Probe

PROBE_TOKENS = 16


class WeightPublisher:
    def __init__(self, run: Run, engine: TrainEngine, rollouts: TrainerControllerClient) -> None:
        self._engine, self._rollouts = engine, rollouts
        self._transport = open_transport(run, engine, rollouts)
        self._probe = probe_sequence(run.config.seed, engine.vocabulary, engine.world.device)

    @property
    def reason(self) -> str:
        return self._transport.reason

    def publish(self, version: int) -> None:
        """All ranks must call it; the first one passes the weights on, and the controller is told."""
        logprobs = self._engine.logprobs([self._probe], temperature=1.0)[0]
        tensors = self._engine.export_weights(adapter_only=self._transport.takes_adapter)
        if not self._engine.world.is_first:
            for _ in tensors:  # each rank takes part in putting the tensors together
                pass
            return
        probe = Probe(probe_ids(self._probe), logprobs.float().tolist())
        self._rollouts.publish(self._transport.publish(version, tensors, probe))

    def close(self, early: bool) -> None:
        """After the trainer's last word."""
        self._transport.close(early)


def probe_sequence(seed: int, vocabulary: int, device: torch.device) -> MicroBatch:
    """The same tokens for all versions of a run; each but the first is predicted."""
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "probe")))
    ids = generator.integers(0, vocabulary, PROBE_TOKENS).astype(np.int32)
    return Sequences(ids, np.ones(PROBE_TOKENS, np.uint8), np.array([PROBE_TOKENS])).micro_batch([0], device)


def probe_ids(probe: MicroBatch) -> list[int]:
    ids: list[int] = [*probe.input_ids_T.tolist(), int(probe.targets_P[-1])]
    return ids
