"""Value loss of a critic: squared error between values and returns, optionally clipped."""

import torch
from torch import Tensor

from areal_like.algorithms.losses.base import Loss, masked
from areal_like.algorithms.statistics import statistics


def value(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    loss_mask: Tensor,
    *,
    eps_clip: float | None,
    weights: Tensor | None = None,
) -> Loss:
    """Half the squared error per token, weighted by `weights` (None: 1) and summed.

    With `eps_clip`, the error of the value clipped to within `eps_clip` of `old_values` (those at the start of the
    step) is computed too, and the larger of both errors counts.
    """
    counts = loss_mask.bool()
    values, old, returns = (masked(x, counts) for x in (values, old_values, returns))
    loss = (values - returns).square() / 2
    is_clipped = torch.zeros_like(counts)
    if eps_clip is not None:
        clipped = old + (values - old).clamp(-eps_clip, eps_clip)
        clipped_loss = (clipped - returns).square() / 2
        is_clipped = counts & (clipped_loss > loss)
        loss = torch.maximum(loss, clipped_loss)
    weighted = loss if weights is None else loss * masked(weights, counts)
    sums = {
        "value_loss": loss,
        "clip_fraction": is_clipped,
        "value": values,
        "return": returns,
    }
    return Loss(weighted.sum(), statistics(counts, sums, {}))
