"""Metrics of a reinforcement learning step: training signal, loss statistics, staleness, and mismatch with the
sampler."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.algorithms.kl import kl
from areal_like.algorithms.losses import off_policy
from areal_like.algorithms.statistics import Statistics
from areal_like.training.batch import REFERENCE, SAMPLER, VERSIONS, TrainingBatch
from areal_like.training.device_sums import DeviceSums
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.world import World

MEASURED_SEQUENCES = 32
"""Sequences per rank that are measured when none is trained on."""

LOSS, MISMATCH, REFERENCE_KL = "loss/", "mismatch/", "reference/"
"""Prefixes of sums."""
LOSS_SUMS = ("tokens", "entropy")
MISMATCH_SUMS = ("tokens", "logprob_diff", "kl", "weight")
MISMATCH_MAXIMA = ("logprob_diff_max", "weight_max")


class StepMetrics:
    """Sums over micro-batches, then over ranks.

    The mismatch between sampler and trainer is measured with the policy before the first update of the step: on all
    trained sequences if their log-probabilities are known, else on those of the first update, whose forward pass yields
    them. Later updates would add the change made by the step itself.
    """

    def __init__(self, world: World, batch: TrainingBatch, reports: Mapping[str, str]) -> None:
        """`reports` are statistics of the loss -> metrics."""
        self._world, self._batch, self._reports = world, batch, reports
        self.sums, self._reference_tokens = DeviceSums(), 0.0

    def add(self, loss: Statistics | None, micro: MicroBatch, policy: Tensor, is_before_update: bool = True) -> None:
        """`loss` is None where nothing is trained; `policy` are the trainer's log-probabilities, which count for the
        mismatch if they are those before the first update of the step."""
        if is_before_update:
            mismatch = off_policy(policy, micro.fields[SAMPLER], torch.ones_like(policy, dtype=torch.bool))
            self.sums.add(_prefixed(MISMATCH, mismatch.sums), _prefixed(MISMATCH, mismatch.maxima))
        if REFERENCE in micro.fields:
            self._reference_tokens += len(policy)
            self.sums.add({f"{REFERENCE_KL}kl_ref": kl(policy, micro.fields[REFERENCE], "k3").sum()})
        if loss is not None:
            known = {name: loss.sums[name] for name in (*LOSS_SUMS, *self._reports) if name in loss.sums}
            self.sums.add(_prefixed(LOSS, known))

    def sample(self, sequences: Sequences) -> NDArray[np.int64]:
        """A few sequences, evenly spread over those with tokens in the loss."""
        rows = np.flatnonzero(sequences.loss_tokens_N)
        return rows[np.unique(np.linspace(0, len(rows) - 1, min(MEASURED_SEQUENCES, len(rows))).astype(np.int64))]

    def metrics(self, has_signal_N: NDArray[np.bool_]) -> dict[str, float]:
        batch, fields = self._batch, self._batch.sequences.fields
        target_mask = batch.sequences.target_mask
        versions = fields[VERSIONS][target_mask].astype(np.int64)
        ages = batch.step - versions[versions >= 0]
        by_age = np.bincount(np.clip(ages, 0, None), minlength=max(0, batch.step - batch.oldest_version) + 1)
        local_counts = [float(len(has_signal_N) - has_signal_N.sum()), float(target_mask.sum())]
        local = {f"{REFERENCE_KL}tokens": self._reference_tokens, **self.sums.read()}
        names = [
            *(f"{LOSS}{name}" for name in (*LOSS_SUMS, *self._reports)),
            *(f"{MISMATCH}{name}" for name in MISMATCH_SUMS),
            *(f"{REFERENCE_KL}{name}" for name in ("tokens", "kl_ref")),
        ]
        without_signal, loss_tokens, *rest = self._world.sum(
            [*local_counts, *(local.get(name, 0.0) for name in names), *by_age.tolist()]
        )
        totals = dict(zip(names, rest, strict=False))
        shares = np.array(rest[len(names) :]) / max(1.0, sum(rest[len(names) :]))
        local_maxima = [local.get(f"{MISMATCH}{name}", 0.0) for name in MISMATCH_MAXIMA]
        maxima = dict(zip(MISMATCH_MAXIMA, self._world.max(local_maxima), strict=True))
        loss, mismatch, reference = (
            {name.removeprefix(prefix): total for name, total in totals.items() if name.startswith(prefix)}
            for prefix in (LOSS, MISMATCH, REFERENCE_KL)
        )
        measured = max(1.0, mismatch["tokens"])
        return {
            "train/samples": float(batch.num_samples),
            "train/tokens": float(batch.num_tokens),
            "train/loss_tokens": loss_tokens,
            "train/sequences_without_signal": without_signal,
            # Tokens of sequences without signal are not clipped, but count in the denominator.
            **{metric: loss[name] / max(1.0, loss_tokens) for name, metric in self._reports.items()},
            **({"train/entropy": loss["entropy"] / loss["tokens"]} if loss["tokens"] else {}),
            **({"train/kl_ref": reference["kl_ref"] / max(1.0, reference["tokens"])} if REFERENCE in fields else {}),
            "offpolicy/logprob_diff_mean": mismatch["logprob_diff"] / measured,
            "offpolicy/logprob_diff_max": maxima["logprob_diff_max"],
            "offpolicy/kl": mismatch["kl"] / measured,
            "offpolicy/weight_mean": mismatch["weight"] / measured,
            "offpolicy/weight_max": maxima["weight_max"],
            "offpolicy/staleness_mean": float((shares * np.arange(len(shares))).sum()),
            "offpolicy/staleness_max": float(batch.step - batch.oldest_version),
            **{f"offpolicy/staleness_share/{age}": share for age, share in enumerate(shares.tolist())},
        }


def _prefixed(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in values.items()}
