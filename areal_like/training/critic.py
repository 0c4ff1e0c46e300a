"""The critic of PPO: predicts values of states, and is trained on the returns."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.algorithms import losses
from areal_like.config.sections.actor import PPOCriticConfig
from areal_like.observe.timing import Stopwatch
from areal_like.process.seeds import derive_seed
from areal_like.training.batch import RETURNS, VALUES, TrainingBatch
from areal_like.training.device_sums import DeviceSums
from areal_like.training.engine import TrainEngine
from areal_like.training.micro_batches import minibatches
from areal_like.training.optimizer_step import OptimizerStep, optimizer_metrics
from areal_like.training.sequences import MicroBatch, Sequences

MIN_VARIANCE = 1e-12
"""A smaller variance of returns is rounding error."""
CLIPPED = "clip_fraction"
"""The statistic of the loss that counts clipped tokens."""


class NoCritic:
    """Of an algorithm without values."""

    trained_engines: Mapping[str, TrainEngine] = {}

    def compute_values(self, batch: TrainingBatch, watch: Stopwatch) -> None:
        pass

    def update(self, batch: TrainingBatch, watch: Stopwatch) -> dict[str, float]:
        return {}


class Critic:
    """`compute_values` runs before the policy is trained, since advantages depend on the values; `update` runs when the
    returns are known. Without an optimizer it is frozen."""

    def __init__(self, engine: TrainEngine, config: PPOCriticConfig, seed: int) -> None:
        self.engine, self.config = engine, config
        self._seed, self._world = seed, engine.world

    @property
    def learns(self) -> bool:
        return self.config.optimizer is not None

    @property
    def trained_engines(self) -> Mapping[str, TrainEngine]:
        """Those with a schedule and a part in checkpoints, by name."""
        return {"critic": self.engine} if self.learns else {}

    def compute_values(self, batch: TrainingBatch, watch: Stopwatch) -> None:
        """Adds to the batch the values of the states in which its tokens were chosen; all ranks must call it."""
        sequences = batch.sequences
        with watch("values"):
            micros = self.engine.micro_batches(sequences, np.flatnonzero(sequences.loss_tokens_N))
            sequences.fields[VALUES] = sequences.scatter(micros, self.engine.values(micros))

    def update(self, batch: TrainingBatch, watch: Stopwatch) -> dict[str, float]:
        """Trains on the returns of the batch; all ranks must call it."""
        prediction = self._prediction_metrics(batch.sequences)
        if not self.learns:
            return prediction
        seed = derive_seed(self._seed, "critic dropout", batch.step, self._world.rank)
        with watch("critic"), self.engine.seeded(seed):
            minibatch_rows = minibatches(batch.sequences, self.config, self._world)
            sums = DeviceSums()
            updates = [self._step(batch, rows_N, sums) for rows_N in minibatch_rows]
        local_clipped = sums.read().get(CLIPPED, 0.0)
        clipped, count = self._world.sum([local_clipped, float(batch.sequences.loss_tokens_N.sum())])
        return {
            **optimizer_metrics("critic", updates),
            "critic/clip_fraction": clipped / max(1.0, count),
            **prediction,
        }

    def _step(self, batch: TrainingBatch, rows_N: NDArray[np.int64], sums: DeviceSums) -> OptimizerStep:
        """The loss is the mean over the tokens of these sequences on all ranks."""
        sequences = batch.sequences
        divisor = max(1.0, self._world.sum([float(sequences.loss_tokens_N[rows_N].sum())])[0])

        def loss(micro: MicroBatch, values: Tensor, _: Tensor | None) -> Tensor:
            mask = torch.ones_like(values, dtype=torch.bool)
            old, returns = micro.fields[VALUES], micro.fields[RETURNS]
            result = losses.value(values, old, returns, mask, eps_clip=self.config.eps_clip)
            sums.add({CLIPPED: result.statistics.sums[CLIPPED]})
            return result.total / divisor

        micros = self.engine.micro_batches(sequences, rows_N[sequences.loss_tokens_N[rows_N] > 0])
        return self.engine.step(batch.step, self.engine.accumulate(micros, loss), sums)

    def _prediction_metrics(self, sequences: Sequences) -> dict[str, float]:
        """How well the values predicted the returns."""
        target_mask = sequences.target_mask
        values, returns = (sequences.fields[name][target_mask].astype(np.float64) for name in (VALUES, RETURNS))
        error = returns - values
        sums_of = [values, returns, np.square(returns), error, np.square(error)]
        count, *sums = self._world.sum([float(len(values)), *(float(each.sum()) for each in sums_of)])
        values_mean, returns_mean, returns_square, error_mean, error_square = (each / max(1.0, count) for each in sums)
        variance, unexplained = returns_square - returns_mean**2, error_square - error_mean**2
        return {
            "critic/value_mean": values_mean,
            "critic/return_mean": returns_mean,
            # Undefined where all returns are equal.
            **({"critic/explained_variance": 1 - unexplained / variance} if variance > MIN_VARIANCE else {}),
        }
