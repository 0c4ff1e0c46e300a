"""What a loss is: a sum over tokens, sequences or pairs, and what is worth logging about it.

A sum is divided by a count of the whole batch (`aggregation.denominator`), never by one of the part at hand.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from areal_like.algorithms.statistics import Statistics

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to this before exp: beyond it a ratio is without meaning, but must not become inf or nan."""


class Loss(NamedTuple):
    """`total`, over the part at hand, carries the gradient."""

    total: Tensor
    statistics: Statistics


class Inputs(NamedTuple):
    """What a policy's loss may look at, per token of the part at hand; a loss of the user's sees it by these names."""

    logprobs: Tensor
    """Of the policy in training: these and `entropy` carry the gradient."""
    old_logprobs: Tensor
    """Of the policy that is held to have chosen the tokens: the sampler's, or the trainer's own in their stead."""
    proximal_logprobs: Tensor
    """Of the policy at the start of the step."""
    reference_logprobs: Tensor | None
    advantages: Tensor
    entropy: Tensor | None
    loss_mask: Tensor
    cu_seqlens: Tensor
    weights: Tensor
    """What a token's loss is multiplied by before it is added up."""


def masked(values: Tensor, where: Tensor) -> Tensor:
    """0 elsewhere. Comes before any computation: a product with 0 would still be nan, here or in the backward pass."""
    return torch.where(where, values, 0.0)


def clamped_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
