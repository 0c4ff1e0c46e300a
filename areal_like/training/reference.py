"""The reference model of the KL penalty: none, a model of its own, or the base model of the actor's adapter."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.training.batch import REFERENCE
from areal_like.training.engine import TrainEngine
from areal_like.training.micro_batches import make_micro_batches
from areal_like.training.sequences import MicroBatch, Sequences


class LogprobEngine(Protocol):
    """What log-probabilities are computed with."""

    def micro_batches(self, sequences: Sequences, rows: NDArray[np.int64]) -> list[MicroBatch]: ...

    def logprobs(self, micros: Sequence[MicroBatch], temperature: float) -> list[Tensor]: ...


def sequence_logprobs(engine: LogprobEngine, sequences: Sequences, temperature: float) -> NDArray[np.float32]:
    """Of all tokens in the loss."""
    micros = engine.micro_batches(sequences, np.flatnonzero(sequences.loss_tokens_N))
    return sequences.scatter(micros, engine.logprobs(micros, temperature))


class NoReference:
    """Of a loss without a KL penalty."""

    exists = False

    def add_logprobs(self, sequences: Sequences, temperature: float) -> None:
        pass


class ReferenceModel:
    """A frozen model."""

    exists = True

    def __init__(self, engine: LogprobEngine) -> None:
        self.engine = engine

    def add_logprobs(self, sequences: Sequences, temperature: float) -> None:
        """Adds its log-probabilities to the sequences; all ranks must call it."""
        sequences.fields[REFERENCE] = sequence_logprobs(self.engine, sequences, temperature)


class BaseModelReference:
    """The engine's model with its adapter disabled: no second model is loaded. `config` is that of the reference, at
    the key `section`."""

    def __init__(self, engine: TrainEngine, config: TrainEngineConfig, section: str) -> None:
        self._engine, self._config, self._section = engine, config, section

    def micro_batches(self, sequences: Sequences, rows: NDArray[np.int64]) -> list[MicroBatch]:
        """See `TrainEngine.micro_batches`."""
        return make_micro_batches(sequences, rows, self._config, self._section, self._engine.world.device)

    def logprobs(self, micros: Sequence[MicroBatch], temperature: float) -> list[Tensor]:
        """See `TrainEngine.logprobs`."""
        with self._engine.adapter_disabled():
            return self._engine.logprobs(micros, temperature)
