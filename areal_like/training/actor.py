"""One step of reinforcement learning: a batch in, one or more updates of the policy, and what is worth knowing about
them."""

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
    """The policy in training, and the model it is held near to (None: no KL penalty). `places` is where a loss of the
    user's is looked for."""

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
        # Where the whole batch is one update, the policy at the start of the step is the one in the loss: its
        # log-probabilities are those of the forward pass that the loss makes anyway.
        self._measures_first = config.ppo_n_minibatches > 1 and (self._loss.needs_proximal or config.recompute_logprob)

    def step(self, batch: TrainingBatch, watch: Stopwatch) -> dict[str, float]:
        """Trains on the batch; all ranks together."""
        health = StepMetrics(self._world, batch, self._loss.reports)
        with watch("prepare"):
            if self.config.mask_truncated_completions:
                mask_truncated(batch)
        with watch("logprobs"):
            self._add_logprobs(batch)
        with watch("prepare"):
            signal_N = self._add_advantages(batch)
            parts = minibatches(batch.sequences, self.config, self._world)
        with watch("logprobs"):
            self._measure_sample_if_needed(batch, parts[0], signal_N, health)
        with watch("train"), self.engine.seeded(derive_seed(self._seed, "dropout", batch.step, self._world.rank)):
            updates = [
                self._update(batch, rows_N, signal_N, health, is_first=number == 0)
                for number, rows_N in enumerate(parts)
            ]
        if self._export is not None:
            self._export.write_batch(batch)
        return {
            **optimizer_metrics("train", updates),
            **health.metrics(signal_N),
        }

    def _add_logprobs(self, batch: TrainingBatch) -> None:
        """Of the policy before the first update, and of the reference, where they have to be computed by themselves."""
        if self._measures_first or (self.reference is not None and self._replaces_sampler):
            batch.sequences.fields[PROXIMAL] = self._logprobs(self.engine, batch.sequences)
        if self.reference is not None:
            batch.sequences.fields[REFERENCE] = self._logprobs(self.reference, batch.sequences)

    @property
    def _replaces_sampler(self) -> bool:
        """Whether the trainer's own log-probabilities stand in for the sampler's."""
        return self.config.recompute_logprob and not self.config.use_decoupled_loss

    def _logprobs(self, engine: TrainEngine | BaseModelReference, sequences: Sequences) -> NDArray[np.float32]:
        micros = engine.cut(sequences, np.flatnonzero(sequences.loss_tokens_N))
        return sequences.scatter(micros, engine.logprobs(micros, self.config.temperature))

    def _add_advantages(self, batch: TrainingBatch) -> NDArray[np.bool_]:
        """Returns which sequences something is to be learnt from. What a critic said is in the batch, and what it
        should have said is left there."""
        fields = batch.sequences.fields
        old = fields[PROXIMAL] if self._replaces_sampler and PROXIMAL in fields else fields[SAMPLER]
        credit = token_advantages(batch, self.config, self._world, old)
        fields[ADVANTAGES], fields[RETURNS] = credit
        if self._loss.needs_all:
            return batch.sequences.loss_tokens_N > 0
        sizes_N = batch.sequences.sums(np.abs(fields[ADVANTAGES]) * batch.sequences.target_mask)
        has_signal_N: NDArray[np.bool_] = sizes_N != 0  # so is NaN: the loss has to hear of it
        return has_signal_N

    def _update(
        self,
        batch: TrainingBatch,
        rows: NDArray[np.int64],
        signal_N: NDArray[np.bool_],
        health: StepMetrics,
        is_first: bool,
    ) -> OptimizerStep:
        """One optimizer step. Sequences whose advantages are all 0 have no gradient: they are left out of the work, and
        still count in what the loss is divided by."""
        config, sequences = self.config, batch.sequences
        counts = sequences.loss_tokens_N[rows]
        own = aggregation.denominator(config.loss_aggregation, *_shape(counts), config.max_new_tokens)
        divisor = max(1.0, self._world.sum([own])[0])
        micros = self.engine.cut(sequences, rows[signal_N[rows]])

        def loss(micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
            inputs = self._inputs(micro, logprobs, entropy)
            found = self._loss(inputs)
            if self._export is not None:
                self._export.add(micro, policy_arrays(micro, inputs, config.ratio))
            is_before_update = is_first or PROXIMAL in micro.fields
            health.add(found.statistics, micro, micro.fields.get(PROXIMAL, logprobs.detach()), is_before_update)
            return found.total / divisor

        total = self.engine.accumulate(micros, loss, config.temperature, with_entropy=True)
        return self.engine.step(batch.step, total)

    def _inputs(self, micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> losses.Inputs:
        mask, cu_seqlens = _shape(micro.loss_tokens_N, logprobs.device)
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

    def _measure_sample_if_needed(
        self, batch: TrainingBatch, first_rows: NDArray[np.int64], signal_N: NDArray[np.bool_], health: StepMetrics
    ) -> None:
        """Where the first update has nothing to learn, its forward pass shows nothing: a few sequences tell how far
        sampler and trainer are apart all the same."""
        shown = signal_N if PROXIMAL in batch.sequences.fields else signal_N[first_rows]
        if self._world.sum([float(shown.sum())])[0] > 0:
            return
        micros = self.engine.cut(batch.sequences, health.sample(batch.sequences))
        for micro, logprobs in zip(micros, self.engine.logprobs(micros, self.config.temperature), strict=True):
            health.add(None, micro, logprobs)


def _shape(counts: Sequence[int] | NDArray[np.int64], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Mask and cu_seqlens of tokens that all count."""
    ends = np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))])
    mask = torch.ones(int(ends[-1]), dtype=torch.bool, device=device)
    return mask, torch.from_numpy(ends).to(device or "cpu")
