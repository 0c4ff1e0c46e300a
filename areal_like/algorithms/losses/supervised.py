"""Supervised loss: cross-entropy of target tokens."""

from torch import Tensor

from areal_like.algorithms.losses.base import Loss, masked
from areal_like.algorithms.statistics import statistics


def cross_entropy(logprobs: Tensor, loss_mask: Tensor, *, weights: Tensor | None = None) -> Loss:
    """Minus the log-probability of each token in the loss, weighted by `weights` (None: 1) and summed."""
    counts = loss_mask.bool()
    loss = -masked(logprobs, counts)
    weighted = loss if weights is None else loss * masked(weights, counts)
    return Loss(weighted.sum(), statistics(counts, {"nll": loss}, {}))
