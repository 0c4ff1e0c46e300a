"""Base types of losses: a sum over tokens, sequences or pairs, and its statistics.

The sum is divided by a count of the whole batch (`aggregation.denominator`), never by a count of a part.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from areal_like.algorithms.statistics import Statistics, statistics

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to [-20, 20] before exp, so that a ratio is never inf or nan."""

Positive = float
"""Type of a built-in loss's argument that must be above 0; the launcher reads it in the source."""
NonNegative = float
"""Likewise, 0 or more."""


class Loss(NamedTuple):
    """`total` is the sum over this part of the batch, with gradient."""

    total: Tensor
    statistics: Statistics


class Inputs(NamedTuple):
    """The inputs of a policy loss, per token of a micro-batch; a loss is given those that its parameters name."""

    logprobs: Tensor
    """Of the policy in training; these and `entropy` have a gradient."""
    old_logprobs: Tensor
    """Of the sampling policy; with `actor.recompute_logprob` recomputed by the trainer."""
    proximal_logprobs: Tensor | None
    """Of the policy at the start of the step; for built-in losses None without `actor.use_decoupled_loss`."""
    reference_logprobs: Tensor | None
    advantages: Tensor
    entropy: Tensor | None
    loss_mask: Tensor
    cu_seqlens: Tensor
    weights: Tensor
    """The weight of each token's loss in the sum."""

    def masked(self) -> "Inputs":
        """With 0 for all values of tokens that are not in the loss."""
        mask = self.loss_mask.bool()
        values = {
            name: masked(value, mask)
            for name, value in self._asdict().items()
            if value is not None and name not in ("loss_mask", "cu_seqlens")
        }
        return self._replace(loss_mask=mask, **values)


PolicyLoss = Callable[[Inputs], Tensor | Loss]
"""A sum over tokens; the loss of each token, which is then weighted and summed; or a Loss. Values of tokens outside of
the mask are 0."""


class InvalidLoss(Exception):
    """A function did not return a loss."""


def as_loss(result: Tensor | Loss, inputs: Inputs) -> Loss:
    """The result of a policy loss as a sum with statistics."""
    if isinstance(result, Tensor):
        if result.shape == inputs.logprobs.shape and result.dim():
            result = (masked(result, inputs.loss_mask) * inputs.weights).sum()
        result = Loss(result, statistics(inputs.loss_mask, {}, {}))
    if not isinstance(result, Loss) or not isinstance(result.total, Tensor) or result.total.dim():
        kind = f"a tensor of shape {list(result.total.shape)}" if isinstance(result, Loss) else type(result).__name__
        raise InvalidLoss(f"it returned {kind}; return a sum, the loss of each token, or a Loss")
    return result


def summed(loss: Tensor, loss_mask: Tensor, weights: Tensor, **sums: Tensor) -> Loss:
    """The weighted sum of a loss per token, and statistics by name, which are logged as means over the tokens."""
    counted = {name: masked(values, loss_mask) for name, values in sums.items()}
    return Loss((masked(loss, loss_mask) * weights).sum(), statistics(loss_mask, counted, {}))


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """0 where the mask is off. Mask before computing: multiplying by 0 would keep nan, also in the backward pass."""
    return torch.where(mask, values, 0.0)


def clamped_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
