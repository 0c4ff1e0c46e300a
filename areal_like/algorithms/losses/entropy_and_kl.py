"""Entropy bonus and KL penalty, added to any policy loss."""

from torch import Tensor

from areal_like.algorithms.kl import kl_loss
from areal_like.algorithms.losses.base import masked


def entropy_and_kl(
    logprobs: Tensor,
    old_logprobs: Tensor,
    loss_mask: Tensor,
    *,
    weights: Tensor | None = None,
    entropy: Tensor | None = None,
    entropy_coef: float = 0.0,
    reference_logprobs: Tensor | None = None,
    kl_coef: float = 0.0,
    kl_estimator: str = "k2",
) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum to add to the loss, with the same token weights, and its statistics."""
    counts = loss_mask.bool()
    logprobs = masked(logprobs, counts)
    per_token, sums = logprobs.new_zeros(()), {}
    if entropy is not None:
        sums["entropy"] = entropy = masked(entropy, counts)
        if entropy_coef:
            per_token = per_token - entropy_coef * entropy
    if reference_logprobs is not None:
        old, reference = masked(old_logprobs, counts), masked(reference_logprobs, counts)
        sums["kl_loss"] = kl = kl_loss(logprobs, old, reference, kl_estimator)
        if kl_coef:
            per_token = per_token + kl_coef * kl
    return (per_token if weights is None else per_token * masked(weights, counts)).sum(), sums
