"""The base model of an adapter as the reference model of the KL penalty."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.training.engine import TrainEngine
from areal_like.training.micro_batches import make_micro_batches
from areal_like.training.sequences import MicroBatch, Sequences


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
