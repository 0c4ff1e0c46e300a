"""SAPO's policy loss: a soft gate in place of a clip ("Soft Adaptive Policy Optimization", arXiv 2511.20347)."""

import torch
from torch import Tensor

from areal_like.algorithms.losses.base import Positive, clamped_exp


def sapo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    tau_pos: Positive = 1.0,
    tau_neg: Positive = 1.05,
) -> Tensor:
    """The slope of the gate is 1 where the ratio is 1, and falls to 0 on both sides: the faster, the higher the
    temperature, which depends on the sign of the advantage."""
    ratio = clamped_exp(logprobs - old_logprobs)
    tau = torch.full_like(advantages, tau_neg).masked_fill(advantages > 0, tau_pos)
    return -4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantages
