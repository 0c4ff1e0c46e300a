"""CISPO's policy loss: the importance ratio is clipped, not the update ("MiniMax-M1", arXiv 2506.13585)."""

from torch import Tensor

from areal_like.algorithms.losses.base import Loss, NonNegative, Positive, clamped_exp, summed


def cispo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    weights: Tensor,
    *,
    eps_low: NonNegative = 1.0,
    eps_high: Positive = 4.0,
) -> Loss:
    """Each token's log-probability, weighted by its ratio within [1 - eps_low, 1 + eps_high], which has no gradient: no
    token is left out. With `eps_low` 1 there is no lower limit."""
    ratio = clamped_exp(logprobs - old_logprobs).detach()
    weight = ratio.clamp(1 - eps_low, 1 + eps_high)
    return summed(-weight * advantages * logprobs, loss_mask, weights, truncated=weight != ratio)
