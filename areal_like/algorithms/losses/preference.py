"""Preference loss of reward models (Bradley-Terry)."""

import torch
from torch import Tensor

from areal_like.algorithms.losses.base import Loss
from areal_like.algorithms.statistics import statistics


def pairwise(chosen_scores: Tensor, rejected_scores: Tensor) -> Loss:
    """-log sigmoid(chosen - rejected), summed over pairs; divide by the number of pairs in the whole batch.

    The statistics count pairs where those of other losses count tokens: `accuracy` is the share of pairs ranked
    correctly, `margin` the difference of scores.
    """
    margin = chosen_scores - rejected_scores
    loss = -torch.nn.functional.logsigmoid(margin)
    sums = {
        "pairwise_loss": loss,
        "accuracy": margin > 0,
        "margin": margin,
        "chosen_score": chosen_scores,
        "rejected_score": rejected_scores,
    }
    return Loss(loss.sum(), statistics(torch.ones_like(margin, dtype=torch.bool), sums, {}))
