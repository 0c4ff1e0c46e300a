"""A policy loss with an entropy bonus and a KL penalty, as every one may have."""

from torch import Tensor

from areal_like.algorithms.kl import kl_loss
from areal_like.algorithms.losses.base import Inputs, Loss, PolicyLoss, as_loss
from areal_like.algorithms.statistics import Statistics, statistics


def with_entropy_and_kl(
    loss: PolicyLoss, inputs: Inputs, *, entropy_coef: float, kl_ctl: float, kl_estimator: str
) -> Loss:
    """`kl_ctl` 0: no penalty here, even if the inputs have the log-probabilities of a reference."""
    inputs = inputs.masked()
    result = as_loss(loss(inputs), inputs)
    per_token, sums = inputs.logprobs.new_zeros(()), dict[str, Tensor]()
    if inputs.entropy is not None:
        sums["entropy"] = inputs.entropy
        if entropy_coef:
            per_token = per_token - entropy_coef * inputs.entropy
    if inputs.reference_logprobs is not None and kl_ctl:
        sums["kl_loss"] = kl = kl_loss(inputs.logprobs, inputs.old_logprobs, inputs.reference_logprobs, kl_estimator)
        per_token = per_token + kl_ctl * kl
    more = statistics(inputs.loss_mask, sums, {})
    return Loss(
        result.total + (per_token * inputs.weights).sum(),
        Statistics({**result.statistics.sums, **more.sums}, dict(result.statistics.maxima)),
    )
