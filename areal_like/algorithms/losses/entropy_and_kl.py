"""What is added to any loss of a policy: a bonus for entropy, and a penalty for leaving the reference model."""

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
    """To be added to the total, weighted like the loss itself; and the sums that tell about it."""
    counts = loss_mask.bool()
    logprobs = masked(logprobs, counts)
    each, sums = logprobs.new_zeros(()), {}
    if entropy is not None:
        sums["entropy"] = entropy = masked(entropy, counts)
        if entropy_coef:
            each = each - entropy_coef * entropy
    if reference_logprobs is not None:
        old, reference = masked(old_logprobs, counts), masked(reference_logprobs, counts)
        sums["kl_loss"] = kl = kl_loss(logprobs, old, reference, kl_estimator)
        if kl_coef:
            each = each + kl_coef * kl
    return (each if weights is None else each * masked(weights, counts)).sum(), sums
