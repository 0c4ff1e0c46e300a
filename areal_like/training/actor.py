"""The actor's training step: log-probabilities, advantages, then one or more optimizer steps and their metrics."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.algorithms import aggregation, losses
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.data.user_code import SearchFolders
from areal_like.observe.timing import Stopwatch
from areal_like.process.seeds import derive_seed
from areal_like.training.batch import (
    ADVANTAGES,
    PROXIMAL,
    REFERENCE,
    RETURNS,
    SAMPLER,
    VERSIONS,
    TrainingBatch,
)
from areal_like.training.batch_advantages import mask_truncated, token_advantages
from areal_like.training.engine import TrainEngine
from areal_like.training.micro_batches import minibatches
from areal_like.training.optimizer_step import OptimizerStep, optimizer_metrics
from areal_like.training.policy_loss import actor_loss
from areal_like.training.reference import NoReference, ReferenceModel, sequence_logprobs
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.step_metrics import StepMetrics
from areal_like.training.token_export import NO_EXPORT, NoTokenExport, TokenExport

CURRENT_FOLDER = SearchFolders(Path(), Path())


class Actor:
    """The policy in training. A step is `compute_logprobs`, `compute_advantages`, `update`; all ranks must call each.
    `places` are the folders in which a user's loss is searched."""

    def __init__(
        self,
        engine: TrainEngine,
        reference: ReferenceModel | NoReference,
        config: PPOActorConfig,
        seed: int,
        places: SearchFolders = CURRENT_FOLDER,
        export: TokenExport | NoTokenExport = NO_EXPORT,
    ) -> None:
        self.engine, self.config = engine, config
        self._reference, self._seed, self._world, self._export = reference, seed, engine.world, export
        self._loss = actor_loss(config, places, reference.exists, engine.world.device)
        # Whether the trainer's recomputed log-probabilities replace the sampler's.
        self._replaces_sampler = config.recompute_logprob and not config.use_decoupled_loss
        # With one update per batch the forward pass of the loss yields these log-probabilities.
        updates_need_it = config.ppo_n_minibatches > 1 and (self._loss.needs_proximal or config.recompute_logprob)
        self._needs_proximal_pass = updates_need_it or (reference.exists and self._replaces_sampler)

    def compute_logprobs(self, batch: TrainingBatch, watch: Stopwatch) -> None:
        """Adds log-probabilities of the policy before the first update and of the reference, where a separate forward
        pass is needed for them."""
        with watch("prepare"):
            if self.config.mask_truncated_completions:
                mask_truncated(batch)
        with watch("logprobs"):
            sequences, temperature = batch.sequences, self.config.temperature
            if self._needs_proximal_pass or batch.trains_observed:
                sequences.fields[PROXIMAL] = sequence_logprobs(self.engine, sequences, temperature)
            if batch.trains_observed:
                _fill_unsampled(sequences)
            self._reference.add_logprobs(sequences, temperature)

    def compute_advantages(self, batch: TrainingBatch, watch: Stopwatch) -> None:
        """Adds the advantages of tokens, and the targets of a critic (`returns`), whose values are already in the
        batch."""
        with watch("prepare"):
            fields = batch.sequences.fields
            old = fields[PROXIMAL] if self._replaces_sampler and PROXIMAL in fields else fields[SAMPLER]
            fields[ADVANTAGES], fields[RETURNS] = token_advantages(batch, self.config, self._world, old)

    def update(self, batch: TrainingBatch, watch: Stopwatch) -> dict[str, float]:
        """One optimizer step on each minibatch; returns the metrics of the step."""
        metrics = StepMetrics(self._world, batch, self._loss.reports)
        with watch("prepare"):
            has_signal_N = self._has_signal(batch.sequences)
            minibatch_rows = minibatches(batch.sequences, self.config, self._world)
        with watch("logprobs"):
            self._measure_mismatch_sample(batch, minibatch_rows[0], has_signal_N, metrics)
        with watch("train"), self.engine.seeded(derive_seed(self._seed, "dropout", batch.step, self._world.rank)):
            steps = [
                self._step(batch, rows_N, has_signal_N, metrics, is_first=index == 0)
                for index, rows_N in enumerate(minibatch_rows)
            ]
        self._export.write_batch(batch)
        return {**optimizer_metrics("train", steps), **metrics.metrics(has_signal_N)}

    def _has_signal(self, sequences: Sequences) -> NDArray[np.bool_]:
        """Which sequences have a gradient."""
        if self._loss.needs_all:
            return sequences.loss_tokens_N > 0
        sizes_N = sequences.sums(np.abs(sequences.fields[ADVANTAGES]) * sequences.target_mask)
        has_signal_N: NDArray[np.bool_] = sizes_N != 0  # NaN too, so that the loss becomes NaN as well
        return has_signal_N

    def _step(
        self,
        batch: TrainingBatch,
        rows: NDArray[np.int64],
        has_signal_N: NDArray[np.bool_],
        metrics: StepMetrics,
        is_first: bool,
    ) -> OptimizerStep:
        """One optimizer step. Sequences whose advantages are all 0 have no gradient: they are skipped, but count in the
        divisor of the loss."""
        config, sequences = self.config, batch.sequences
        counts = sequences.loss_tokens_N[rows]
        ends = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
        is_in_loss = torch.ones(int(ends[-1]), dtype=torch.bool)
        local_count = aggregation.denominator(config.loss_aggregation, is_in_loss, ends, config.max_new_tokens)
        divisor = max(1.0, self._world.sum([local_count])[0])
        micros = self.engine.micro_batches(sequences, rows[has_signal_N[rows]])

        def loss(micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
            inputs = self._inputs(micro, logprobs, entropy)
            result = self._loss(inputs)
            self._export.add_policy(micro, inputs, config.ratio)
            is_before_update = is_first or PROXIMAL in micro.fields
            metrics.add(result.statistics, micro, micro.fields.get(PROXIMAL, logprobs.detach()), is_before_update)
            return result.total / divisor

        total = self.engine.accumulate(micros, loss, config.temperature, with_entropy=True)
        return self.engine.step(batch.step, total, metrics.sums)

    def _inputs(self, micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> losses.Inputs:
        mask, cu_seqlens = torch.ones_like(logprobs, dtype=torch.bool), micro.target_cu_seqlens
        proximal = micro.fields.get(PROXIMAL, logprobs.detach())
        return losses.Inputs(
            logprobs=logprobs,
            old_logprobs=proximal if self._replaces_sampler else micro.fields[SAMPLER],
            proximal_logprobs=proximal,
            reference_logprobs=micro.fields.get(REFERENCE),
            advantages=micro.fields[ADVANTAGES],
            entropy=entropy,
            loss_mask=mask,
            cu_seqlens=cu_seqlens,
            weights=aggregation.token_weights(self.config.loss_aggregation, mask, cu_seqlens),
        )

    def _measure_mismatch_sample(
        self, batch: TrainingBatch, first_rows: NDArray[np.int64], has_signal_N: NDArray[np.bool_], metrics: StepMetrics
    ) -> None:
        """Measures the mismatch between sampler and trainer on a few sequences where the first update has nothing to
        train on."""
        trained_N = has_signal_N if PROXIMAL in batch.sequences.fields else has_signal_N[first_rows]
        if self._world.sum([float(trained_N.sum())])[0] > 0:
            return
        micros = self.engine.micro_batches(batch.sequences, metrics.sample(batch.sequences))
        for micro, logprobs in zip(micros, self.engine.logprobs(micros, self.config.temperature), strict=True):
            metrics.add(None, micro, logprobs)


def _fill_unsampled(sequences: Sequences) -> None:
    """Tokens of others in the loss: their probabilities under the policy before the update take the place of the
    sampler's, so that their importance ratio begins at 1."""
    fields = sequences.fields
    is_sampled = fields[VERSIONS] >= 0
    fields[SAMPLER] = np.where(is_sampled, fields[SAMPLER], fields[PROXIMAL]).astype(np.float32)
