"""Learning which of two answers is the better one."""

import torch
from torch import Tensor

from areal_like.algorithms.losses.base import Loss
from areal_like.algorithms.statistics import statistics


def pairwise(chosen_scores: Tensor, rejected_scores: Tensor) -> Loss:
    """-log sigmoid(chosen - rejected), added up over pairs (Bradley and Terry); divide by the pairs of the whole batch.

    The statistics count pairs where those of other losses count tokens: `accuracy` is the share of pairs in the right
    order, `margin` how far apart they are.
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
