"""DPPO's policy loss: a trust region by total variation ("Rethinking the Trust Region in LLM Reinforcement Learning",
arXiv 2602.04879; its binary variant)."""

import torch
from torch import Tensor

from areal_like.algorithms.losses.base import Loss, NonNegative, clamped_exp, summed


def dppo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    weights: Tensor,
    *,
    dppo_mask_low: NonNegative = 0.2,
    dppo_mask_high: NonNegative = 0.2,
    kl_tau: NonNegative = 1e-3,
) -> Loss:
    """A token is left out if its probability has already moved by more than a limit to where its advantage points. The
    squared log-ratio of every token, times `kl_tau`, is added: it pulls those back that are left out."""
    log_ratio = logprobs - old_logprobs
    moved = (logprobs.exp() - old_logprobs.exp()).detach()
    taken_out = torch.where(advantages > 0, moved > dppo_mask_high, (advantages < 0) & (moved < -dppo_mask_low))
    policy = -clamped_exp(log_ratio) * advantages
    loss = torch.where(taken_out, 0.0, policy) + kl_tau * log_ratio.square()
    return summed(loss, loss_mask, weights, taken_out=taken_out)
