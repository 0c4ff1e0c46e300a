"""The value model of PPO: it says what reward is still to come at each token, and then learns from what did come."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.algorithms import losses
from areal_like.config.sections.actor import PPOCriticConfig
from areal_like.observe.timing import Stopwatch
from areal_like.process.seeds import derive_seed
from areal_like.training.batch import RETURNS, VALUES, TrainingBatch
from areal_like.training.engine import TrainEngine
from areal_like.training.micro_batches import minibatches
from areal_like.training.optimizer_step import OptimizerStep, optimizer_metrics
from areal_like.training.sequences import MicroBatch, Sequences

MIN_VARIANCE = 1e-12
"""Of returns: a variance below it is an error of rounding."""


class CriticStep(NamedTuple):
    """One optimizer step, and how many tokens of this rank the clip held back in it."""

    update: OptimizerStep
    num_clipped: float


class Critic:
    """`judge` comes before the policy learns, since advantages are measured against its values; `step` when the
    returns are known. Without an optimizer it only judges."""

    def __init__(self, engine: TrainEngine, config: PPOCriticConfig, seed: int) -> None:
        self.engine, self.config = engine, config
        self._seed, self._world = seed, engine.world

    @property
    def learns(self) -> bool:
        return self.config.optimizer is not None

    def compute_values(self, batch: TrainingBatch, watch: Stopwatch) -> None:
        """Gives the batch the values of the states in which its tokens were chosen; all ranks together."""
        sequences = batch.sequences
        with watch("values"):
            micros = self.engine.cut(sequences, np.flatnonzero(sequences.loss_tokens_N))
            sequences.fields[VALUES] = sequences.scatter(micros, self.engine.values(micros))

    def step(self, batch: TrainingBatch, watch: Stopwatch) -> dict[str, float]:
        """Learns from the returns of the batch; all ranks together."""
        fit = self._fit(batch.sequences)
        if not self.learns:
            return fit
        seed = derive_seed(self._seed, "critic dropout", batch.step, self._world.rank)
        with watch("critic"), self.engine.seeded(seed):
            rows = minibatches(batch.sequences, self.config, self._world)
            parts = [self._update(batch, rows_N) for rows_N in rows]
        clipped, count = self._world.sum(
            [sum(part.num_clipped for part in parts), float(batch.sequences.loss_tokens_N.sum())]
        )
        updates = [part.update for part in parts]
        return {
            **optimizer_metrics("critic", updates),
            "critic/clip_fraction": clipped / max(1.0, count),
            **fit,
        }

    def _update(self, batch: TrainingBatch, rows_N: NDArray[np.int64]) -> CriticStep:
        """The loss is the mean over the tokens of these sequences on all ranks."""
        sequences, num_clipped = batch.sequences, 0.0
        divisor = max(1.0, self._world.sum([float(sequences.loss_tokens_N[rows_N].sum())])[0])

        def loss(micro: MicroBatch, values: Tensor, _: Tensor | None) -> Tensor:
            nonlocal num_clipped
            mask = torch.ones_like(values, dtype=torch.bool)
            old, returns = micro.fields[VALUES], micro.fields[RETURNS]
            found = losses.value(values, old, returns, mask, eps_clip=self.config.eps_clip)
            num_clipped += float(found.statistics.sums["clip_fraction"])
            return found.total / divisor

        micros = self.engine.cut(sequences, rows_N[sequences.loss_tokens_N[rows_N] > 0])
        return CriticStep(self.engine.step(batch.step, self.engine.accumulate(micros, loss)), num_clipped)

    def _fit(self, sequences: Sequences) -> dict[str, float]:
        """How well the returns were foretold."""
        target_mask = sequences.target_mask
        values, returns = (sequences.fields[name][target_mask].astype(np.float64) for name in (VALUES, RETURNS))
        rest = returns - values
        own = [values, returns, np.square(returns), rest, np.square(rest)]
        count, *sums = self._world.sum([float(len(values)), *(float(each.sum()) for each in own)])
        values_mean, returns_mean, returns_square, rest_mean, rest_square = (each / max(1.0, count) for each in sums)
        spread, unexplained = returns_square - returns_mean**2, rest_square - rest_mean**2
        return {
            "critic/value_mean": values_mean,
            "critic/return_mean": returns_mean,
            # Where all returns are alike there is nothing to explain.
            **({"critic/explained_variance": 1 - unexplained / spread} if spread > MIN_VARIANCE else {}),
        }
