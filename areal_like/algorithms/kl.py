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


def kl_loss(logprobs: Tensor, sampled: Tensor, reference: Tensor, estimator: str = "k1") -> Tensor:
    """The same as a loss, whose gradient holds the policy near to the reference. `sampled` are the log-probabilities of
    the policy that chose the tokens.

    k1 is weighted by policy/sampler: without that, its gradient would be 0 on average, whatever the reference says; so
    it is that of the KL, however old the sample. That of k2 is so too as long as the policy is the sampler. That of k3,
    which GRPO takes, is then the gradient of the KL the other way round, of the reference against the policy.

    k1 and k2 are not clamped here: a token that is far off must still be drawn back.
    """
    log_ratio = logprobs - reference
    if estimator == "k1":
        return log_ratio * (logprobs - sampled).clamp(-_SAFE, _SAFE).exp()
    if estimator == "k2":
        return log_ratio.square() / 2
    return kl(logprobs, reference, estimator)
