"""Publishes weights to the servers: all ranks gather them, the first one sends them with a probe for verification."""

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


class NoPublisher:
    """Of a run without servers."""

    reason = "nothing: there are no servers"

    def publish(self, version: int) -> None:
        pass

    def close(self, early: bool) -> None:
        pass


class WeightPublisher:
    def __init__(self, run: Run, engine: TrainEngine, controller: TrainerControllerClient) -> None:
        self._engine, self._controller = engine, controller
        self._transport = open_transport(run, engine, controller)
        self._probe = probe_sequence(run.config.seed, engine.vocab_size, engine.world.device)

    @property
    def reason(self) -> str:
        return self._transport.reason

    def publish(self, version: int) -> None:
        """All ranks must call it; the first one sends the weights and notifies the controller."""
        logprobs = self._engine.logprobs([self._probe], temperature=1.0)[0]
        tensors = self._engine.export_weights(adapter_only=self._transport.takes_adapter)
        if not self._engine.world.is_first:
            for _ in tensors:  # gathering is collective
                pass
            return
        probe = Probe(probe_ids(self._probe), logprobs.float().tolist())
        self._controller.publish(self._transport.publish(version, tensors, probe))

    def close(self, early: bool) -> None:
        """Called after the trainer's last request."""
        self._transport.close(early)


def probe_sequence(seed: int, vocab_size: int, device: torch.device) -> MicroBatch:
    """The same tokens for all versions of a run; each but the first is predicted."""
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "probe")))
    ids = generator.integers(0, vocab_size, PROBE_TOKENS).astype(np.int32)
    return Sequences(ids, np.ones(PROBE_TOKENS, np.uint8), np.array([PROBE_TOKENS])).micro_batch([0], device)


def probe_ids(probe: MicroBatch) -> list[int]:
    ids: list[int] = [*probe.input_ids_T.tolist(), int(probe.targets_P[-1])]
    return ids
