"""Base types of losses: a sum over tokens, sequences or pairs, and its statistics.

The sum is divided by a count of the whole batch (`aggregation.denominator`), never by a count of a part.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from areal_like.algorithms.statistics import Statistics

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to [-20, 20] before exp, so that a ratio is never inf or nan."""


class Loss(NamedTuple):
    """`total` is the sum over this part of the batch, with gradient."""

    total: Tensor
    statistics: Statistics


class Inputs(NamedTuple):
    """The inputs of a policy loss, per token of a micro-batch; a user's loss requests them by these names."""

    logprobs: Tensor
    """Of the policy in training; these and `entropy` have a gradient."""
    old_logprobs: Tensor
    """Of the sampling policy; with `actor.recompute_logprob` recomputed by the trainer."""
    proximal_logprobs: Tensor
    """Of the policy at the start of the step."""
    reference_logprobs: Tensor | None
    advantages: Tensor
    entropy: Tensor | None
    loss_mask: Tensor
    cu_seqlens: Tensor
    weights: Tensor
    """The weight of each token's loss in the sum."""


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """0 where the mask is off. Mask before computing: multiplying by 0 would keep nan, also in the backward pass."""
    return torch.where(mask, values, 0.0)


def clamped_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
