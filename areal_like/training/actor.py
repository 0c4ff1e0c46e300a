"""The actor's training step: log-probabilities, advantages, then one or more optimizer steps and their metrics."""

from collections.abc import Sequence
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
from areal_like.training.batch import ADVANTAGES, PROXIMAL, REFERENCE, RETURNS, SAMPLER, TrainingBatch
from areal_like.training.batch_advantages import mask_truncated, token_advantages
from areal_like.training.engine import TrainEngine
from areal_like.training.micro_batches import minibatches
from areal_like.training.optimizer_step import OptimizerStep, optimizer_metrics
from areal_like.training.policy_loss import policy_loss
from areal_like.training.reference import BaseModelReference
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.step_metrics import StepMetrics
from areal_like.training.token_export import TokenExport, policy_arrays

CURRENT_FOLDER = SearchFolders(Path(), Path())


class Actor:
    """The policy in training, and the reference model of the KL penalty (None: no penalty). `places` are the folders in
    which a user's loss is searched."""

    def __init__(
        self,
        engine: TrainEngine,
        reference: TrainEngine | BaseModelReference | None,
        config: PPOActorConfig,
        seed: int,
        places: SearchFolders = CURRENT_FOLDER,
        export: TokenExport | None = None,
    ) -> None:
        self.engine, self.reference, self.config = engine, reference, config
        self._seed, self._world, self._export = seed, engine.world, export
        self._loss = policy_loss(config, places, reference is not None, engine.world.device)
        # With one update per batch the forward pass of the loss yields these log-probabilities.
        self._needs_proximal_pass = config.ppo_n_minibatches > 1 and (
            self._loss.needs_proximal or config.recompute_logprob
        )

    def step(self, batch: TrainingBatch, watch: Stopwatch) -> dict[str, float]:
        """Trains on the batch; all ranks must call it."""
        metrics = StepMetrics(self._world, batch, self._loss.reports)
        with watch("prepare"):
            if self.config.mask_truncated_completions:
                mask_truncated(batch)
        with watch("logprobs"):
            self._add_logprobs(batch)
        with watch("prepare"):
            has_signal_N = self._add_advantages(batch)
            minibatch_rows = minibatches(batch.sequences, self.config, self._world)
        with watch("logprobs"):
            self._measure_mismatch_sample(batch, minibatch_rows[0], has_signal_N, metrics)
        with watch("train"), self.engine.seeded(derive_seed(self._seed, "dropout", batch.step, self._world.rank)):
            updates = [
                self._update(batch, rows_N, has_signal_N, metrics, is_first=index == 0)
                for index, rows_N in enumerate(minibatch_rows)
            ]
        if self._export is not None:
            self._export.write_batch(batch)
        return {
            **optimizer_metrics("train", updates),
            **metrics.metrics(has_signal_N),
        }

    def _add_logprobs(self, batch: TrainingBatch) -> None:
        """Adds log-probabilities of the policy before the first update and of the reference, where a separate forward
        pass is needed for them."""
        if self._needs_proximal_pass or (self.reference is not None and self._replaces_sampler):
            batch.sequences.fields[PROXIMAL] = self._logprobs(self.engine, batch.sequences)
        if self.reference is not None:
            batch.sequences.fields[REFERENCE] = self._logprobs(self.reference, batch.sequences)

    @property
    def _replaces_sampler(self) -> bool:
        """Whether the trainer's recomputed log-probabilities replace the sampler's."""
        return self.config.recompute_logprob and not self.config.use_decoupled_loss

    def _logprobs(self, engine: TrainEngine | BaseModelReference, sequences: Sequences) -> NDArray[np.float32]:
        micros = engine.micro_batches(sequences, np.flatnonzero(sequences.loss_tokens_N))
        return sequences.scatter(micros, engine.logprobs(micros, self.config.temperature))

    def _add_advantages(self, batch: TrainingBatch) -> NDArray[np.bool_]:
        """Returns which sequences have a training signal. Values of a critic are already in the batch; its targets
        (`returns`) are added."""
        fields = batch.sequences.fields
        old = fields[PROXIMAL] if self._replaces_sampler and PROXIMAL in fields else fields[SAMPLER]
        fields[ADVANTAGES], fields[RETURNS] = token_advantages(batch, self.config, self._world, old)
        if self._loss.needs_all:
            return batch.sequences.loss_tokens_N > 0
        sizes_N = batch.sequences.sums(np.abs(fields[ADVANTAGES]) * batch.sequences.target_mask)
        has_signal_N: NDArray[np.bool_] = sizes_N != 0  # NaN too, so that the loss becomes NaN as well
        return has_signal_N

    def _update(
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
        local_count = aggregation.denominator(config.loss_aggregation, *_packed_shape(counts), config.max_new_tokens)
        divisor = max(1.0, self._world.sum([local_count])[0])
        micros = self.engine.micro_batches(sequences, rows[has_signal_N[rows]])

        def loss(micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
            inputs = self._inputs(micro, logprobs, entropy)
            result = self._loss(inputs)
            if self._export is not None:
                self._export.add(micro, policy_arrays(micro, inputs, config.ratio))
            is_before_update = is_first or PROXIMAL in micro.fields
            metrics.add(result.statistics, micro, micro.fields.get(PROXIMAL, logprobs.detach()), is_before_update)
            return result.total / divisor

        total = self.engine.accumulate(micros, loss, config.temperature, with_entropy=True)
        return self.engine.step(batch.step, total)

    def _inputs(self, micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> losses.Inputs:
        mask, cu_seqlens = _packed_shape(micro.loss_tokens_N, logprobs.device)
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


def _packed_shape(
    counts: Sequence[int] | NDArray[np.int64], device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Mask and cu_seqlens of tokens that are all in the loss."""
    ends = np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))])
    mask = torch.ones(int(ends[-1]), dtype=torch.bool, device=device)
    return mask, torch.from_numpy(ends).to(device or "cpu")
