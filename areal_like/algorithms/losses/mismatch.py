"""Mismatch between trainer and sampler."""

import torch
from torch import Tensor

from areal_like.algorithms.losses.base import LOG_RATIO_LIMIT, masked
from areal_like.algorithms.statistics import Statistics, statistics


def off_policy(logprobs: Tensor, sampler_logprobs: Tensor, loss_mask: Tensor) -> Statistics:
    """Difference of log-probabilities, KL of the sampler against the trainer (k3), and the importance weight
    trainer/sampler."""
    counts = loss_mask.bool()
    difference = masked(logprobs.detach(), counts) - masked(sampler_logprobs, counts)
    clamped = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    distance, weight = difference.abs(), masked(clamped.exp(), counts)
    sums = {"logprob_diff": distance, "kl": torch.expm1(clamped) - clamped, "weight": weight}
    return statistics(counts, sums, {"logprob_diff_max": distance, "weight_max": weight})
