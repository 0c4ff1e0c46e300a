"""How far the values that a critic predicts are from the returns."""

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
    eps_clip: float | None = None,
    weights: Tensor | None = None,
) -> Loss:
    """Half the squared error per token, weighted by `weights` (None: 1) and added up.

    With `eps_clip`, a value that went further than this from `old_values` (of the critic at the start of the step) is
    also taken as if it had stopped there, and the larger of the two errors counts: going further brings no gain.
    """
    counts = loss_mask.bool()
    values, old, returns = (masked(x, counts) for x in (values, old_values, returns))
    loss = (values - returns).square() / 2
    is_clipped = torch.zeros_like(counts)
    if eps_clip is not None:
        stopped = old + (values - old).clamp(-eps_clip, eps_clip)
        after = (stopped - returns).square() / 2
        is_clipped = counts & (after > loss)
        loss = torch.maximum(loss, after)
    weighted = loss if weights is None else loss * masked(weights, counts)
    sums = {
        "value_loss": loss,
        "clip_fraction": is_clipped,
        "value": values,
        "return": returns,
    }
    return Loss(weighted.sum(), statistics(counts, sums, {}))
