"""Estimates, per token, of how far one policy is from another, from the log-probabilities of a sampled token."""

import torch
from torch import Tensor

ESTIMATORS = ("k1", "k2", "k3")
LIMIT = 10.0
_SAFE = 20.0  # further apart than this, every estimate lies beyond LIMIT: exp can then neither overflow nor matter


def kl(logprobs: Tensor, reference: Tensor, estimator: str = "k1") -> Tensor:
    """KL of the policy against the reference at tokens that the policy sampled, clamped to between -10 and 10.

    k1 is the log-ratio (unbiased), k2 half its square, k3 = exp(-k1) - 1 + k1 (unbiased, positive, low variance).
    """
    log_ratio = logprobs - reference
    if estimator == "k1":
        estimate = log_ratio
    elif estimator == "k2":
        estimate = log_ratio.square() / 2
    elif estimator == "k3":
        near = log_ratio.clamp(-_SAFE, _SAFE)
        estimate = torch.expm1(-near) + near
    else:
        raise ValueError(f"actor.kl_estimator: {estimator!r} is none of {', '.join(ESTIMATORS)}")
    return estimate.clamp(-LIMIT, LIMIT)


def kl_rewards(
    logprobs: Tensor, reference: Tensor, loss_mask: Tensor, *, coefficient: float, estimator: str = "k1"
) -> Tensor:
    """The KL penalty as a reward of each token: -coefficient * KL, 0 where the mask is off."""
    return torch.where(loss_mask.bool(), -coefficient * kl(logprobs, reference, estimator), 0.0)
