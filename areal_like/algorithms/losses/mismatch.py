"""How far the policy in training is from the one that sampled."""

import torch
from torch import Tensor

from areal_like.algorithms.losses.base import LOG_RATIO_LIMIT, masked
from areal_like.algorithms.statistics import Statistics, statistics


def off_policy(logprobs: Tensor, sampler_logprobs: Tensor, loss_mask: Tensor) -> Statistics:
    """Difference of log-probabilities, KL of the sampler against the trainer (k3), and the weight by which
    trainer/sampler importance sampling would correct."""
    counts = loss_mask.bool()
    difference = masked(logprobs.detach(), counts) - masked(sampler_logprobs, counts)
    near = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    apart, weight = difference.abs(), masked(near.exp(), counts)
    sums = {"logprob_diff": apart, "kl": torch.expm1(near) - near, "weight": weight}
    return statistics(counts, sums, {"logprob_diff_max": apart, "weight_max": weight})
