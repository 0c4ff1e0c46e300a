"""One step of reinforcement learning: a batch in, one or more updates of the policy, and what is worth knowing about
them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.algorithms import aggregation, losses
from areal_like.config.actor import PPOActorConfig
from areal_like.data import packing
from areal_like.observe.timing import Stopwatch
from areal_like.process.seeds import derive_seed
from areal_like.training.batch import SAMPLER, Batch
from areal_like.training.credit import token_advantages, without_truncated
from areal_like.training.engine import Engine, Update
from areal_like.training.health import Health
from areal_like.training.micro_batches import cut
from areal_like.training.sequences import MicroBatch, Sequences

ADVANTAGES, PROXIMAL = "advantages", "proximal"


class Actor:
    """The policy in training, and the model it is held near to (None: no KL penalty)."""

    def __init__(self, engine: Engine, reference: Engine | None, config: PPOActorConfig, seed: int) -> None:
        self.engine, self.reference, self.config = engine, reference, config
        self._seed, self._world = seed, engine.world
        # Where the whole batch is one update, the policy at the start of the step is the one in the loss: its
        # log-probabilities are those of the forward pass that the loss makes anyway.
        self._measures_first = config.ppo_n_minibatches > 1 and (config.use_decoupled_loss or config.recompute_logprob)

    def step(self, batch: Batch, watch: Stopwatch) -> dict[str, float]:
        """Trains on the batch; all ranks together."""
        health = Health(self._world, batch)
        with watch("prepare"):
            if self.config.mask_truncated_completions:
                without_truncated(batch)
        with watch("logprobs"):
            self._add_logprobs(batch)
        with watch("prepare"):
            signal_N = self._add_advantages(batch)
        with watch("train"), self.engine.seeded(derive_seed(self._seed, "dropout", batch.step, self._world.rank)):
            updates = [
                self._update(batch, np.array(rows, dtype=np.int64), signal_N, health)
                for rows in self._minibatches(batch.sequences)
            ]
        if health.is_unknown():
            self._measure_sample(batch, health)
        return {
            "train/loss": float(np.mean([update.loss for update in updates])),
            "train/grad_norm": float(np.mean([update.grad_norm for update in updates])),
            "train/lr": updates[-1].lr,
            "train/updates": float(sum(not update.is_skipped for update in updates)),
            "train/skipped_updates": float(sum(update.is_skipped for update in updates)),
            **health.metrics(signal_N),
        }

    def _minibatches(self, sequences: Sequences) -> list[list[int]]:
        """One update each, as many on every rank, although ranks with few sequences have empty ones."""
        wanted = self.config.ppo_n_minibatches
        plan = packing.minibatches(sequences.lengths_N.tolist(), wanted)
        most = int(self._world.max([len(plan)])[0])
        return plan + [[] for _ in range(most - len(plan))]

    def _add_logprobs(self, batch: Batch) -> None:
        """Of the policy before the first update, and of the reference, where they have to be computed by themselves."""
        if self._measures_first or (self.reference is not None and self._replaces_sampler):
            batch.sequences.fields[PROXIMAL] = self._logprobs(self.engine, batch.sequences)
        if self.reference is not None:
            batch.reference = self._logprobs(self.reference, batch.sequences)

    @property
    def _replaces_sampler(self) -> bool:
        """Whether the trainer's own log-probabilities stand in for the sampler's."""
        return self.config.recompute_logprob and not self.config.use_decoupled_loss

    def _logprobs(self, engine: Engine, sequences: Sequences) -> NDArray[np.float32]:
        micros = cut(
            sequences, np.flatnonzero(sequences.counts_N), self.config.mb_spec, engine.where, self._world.device
        )
        return sequences.scatter(micros, engine.logprobs(micros, self.config.temperature))

    def _add_advantages(self, batch: Batch) -> NDArray[np.bool_]:
        """Returns which sequences something is to be learnt from."""
        fields = batch.sequences.fields
        old = fields[PROXIMAL] if self._replaces_sampler and PROXIMAL in fields else fields[SAMPLER]
        fields[ADVANTAGES] = token_advantages(batch, self.config, self._world, old, batch.reference)
        if self.config.entropy_coef > 0:
            return batch.sequences.counts_N > 0
        return batch.sequences.sums(np.abs(fields[ADVANTAGES]) * batch.sequences.counted) > 0

    def _update(self, batch: Batch, rows: NDArray[np.int64], signal_N: NDArray[np.bool_], health: Health) -> Update:
        """One optimizer step. Sequences whose advantages are all 0 have no gradient: they are left out of the work, and
        still count in what the loss is divided by."""
        config, sequences = self.config, batch.sequences
        counts = sequences.counts_N[rows]
        own = aggregation.denominator(config.loss_aggregation, *_shape(counts), config.max_new_tokens)
        divisor = max(1.0, self._world.sum([own])[0])
        micros = cut(sequences, rows[signal_N[rows]], config.mb_spec, self.engine.where, self._world.device)

        def loss(micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
            found = self._loss(micro, logprobs, entropy)
            health.add(found.statistics, micro, micro.fields.get(PROXIMAL, logprobs.detach()))
            return found.total / divisor

        total = self.engine.accumulate(micros, loss, config.temperature, with_entropy=True)
        return self.engine.step(batch.step, total)

    def _loss(self, micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> losses.Loss:
        config, mask, cu_seqlens = self.config, *_shape(micro.counts_N, logprobs.device)
        proximal = micro.fields.get(PROXIMAL, logprobs.detach())
        return losses.ppo(
            logprobs,
            proximal if self._replaces_sampler else micro.fields[SAMPLER],
            micro.fields[ADVANTAGES],
            mask,
            weights=aggregation.token_weights(config.loss_aggregation, mask, cu_seqlens),
            proximal_logprobs=proximal if config.use_decoupled_loss else None,
            eps_clip=config.eps_clip,
            eps_clip_higher=config.eps_clip_higher,
            c_clip=config.c_clip,
            behav_imp_weight_cap=config.behav_imp_weight_cap,
            cu_seqlens=cu_seqlens,
            ratio_level=config.ratio.level,
            ratio_length_norm=config.ratio.length_norm,
            mask_high=config.ratio.mask_high,
            mask_low=config.ratio.mask_low,
            sequence_mask_low=config.ratio.sequence_mask_low,
            entropy=entropy,
            entropy_coef=config.entropy_coef,
        )

    def _measure_sample(self, batch: Batch, health: Health) -> None:
        """Where nothing was to be learnt, nothing was computed: a few sequences tell how far sampler and trainer are
        apart all the same."""
        rows = health.sample(batch.sequences)
        micros = cut(batch.sequences, rows, self.config.mb_spec, self.engine.where, self._world.device)
        for micro, logprobs in zip(micros, self.engine.logprobs(micros, self.config.temperature), strict=True):
            health.add(None, micro, logprobs)


def _shape(counts: Sequence[int] | NDArray[np.int64], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Mask and cu_seqlens of tokens that all count."""
    ends = np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))])
    mask = torch.ones(int(ends[-1]), dtype=torch.bool, device=device)
    return mask, torch.from_numpy(ends).to(device or "cpu")
