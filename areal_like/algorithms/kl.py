"""KL divergence estimators (k1, k2, k3), per token, from the log-probabilities of sampled tokens."""

import torch
from torch import Tensor

ESTIMATORS = ("k1", "k2", "k3")
LIMIT = 10.0
_SAFE = 20.0  # beyond this every estimate exceeds LIMIT, so the clamp before exp changes no result


def kl(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """KL of the policy against the reference at tokens that the policy sampled, clamped to [-10, 10].

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
        raise ValueError(f"actor.kl_estimator: {estimator!r} is not one of {', '.join(ESTIMATORS)}")
    return estimate.clamp(-LIMIT, LIMIT)


def kl_rewards(logprobs: Tensor, reference: Tensor, loss_mask: Tensor, *, coefficient: float, estimator: str) -> Tensor:
    """The KL penalty as a reward per token: -coefficient * KL, 0 where the mask is off."""
    return torch.where(loss_mask.bool(), -coefficient * kl(logprobs, reference, estimator), 0.0)


def kl_loss(logprobs: Tensor, sampled: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """The KL penalty as a loss, whose gradient pulls the policy towards the reference. `sampled` are the
    log-probabilities of the policy that chose the tokens.

    k1 is weighted by policy/sampler: without that weight its gradient would be 0 on average. With it, it is the
    gradient of the KL, however old the sample. The gradient of k2 is that of the KL while the policy is the sampler.
    That of k3, which GRPO uses, is then the gradient of the reverse KL, of the reference against the policy.

    k1 and k2 are not clamped here: a token that is far off must still be pulled back.
    """
    log_ratio = logprobs - reference
    if estimator == "k1":
        return log_ratio * (logprobs - sampled).clamp(-_SAFE, _SAFE).exp()
    if estimator == "k2":
        return log_ratio.square() / 2
    return kl(logprobs, reference, estimator)
