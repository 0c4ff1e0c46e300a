"""PPO's policy loss, clipped or not."""

import torch
from torch import Tensor

from areal_like.algorithms.losses.base import Loss, masked, summed
from areal_like.algorithms.losses.ratio import RatioLimits, importance_weights, ratio_of, within_limits


def ppo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    proximal_logprobs: Tensor | None,
    advantages: Tensor,
    loss_mask: Tensor,
    cu_seqlens: Tensor,
    weights: Tensor,
    *,
    eps_clip: float | None,
    eps_clip_higher: float | None,
    c_clip: float | None,
    behav_imp_weight_cap: float | None,
    behav_imp_weight_floor: float | None,
    behav_imp_weight_mode: str,
    behav_imp_weight_level: str,
    ratio: RatioLimits,
) -> Loss:
    """PPO's clipped loss; `eps_clip` None disables clipping.

    With `proximal_logprobs` (the policy at the start of the step) the loss is decoupled: the ratio is taken and clipped
    against these, and each token is weighted by proximal/sampler; a weight above `behav_imp_weight_cap` becomes 0 or
    the cap. Masked tokens still count in the denominator.
    """
    if c_clip is not None and c_clip <= 1:
        raise ValueError(f"actor.c_clip: must be more than 1, not {c_clip}")
    proximal = old_logprobs if proximal_logprobs is None else proximal_logprobs
    of_tokens = ratio_of(logprobs - proximal, loss_mask, cu_seqlens, ratio.level, ratio.length_norm)
    loss = -advantages * of_tokens
    is_clipped = torch.zeros_like(loss_mask)
    if eps_clip is not None:
        highest = 1 + (eps_clip if eps_clip_higher is None else eps_clip_higher)
        clipped = -advantages * of_tokens.clamp(1 - eps_clip, highest)
        loss, is_clipped = torch.maximum(loss, clipped), loss < clipped
    if c_clip is not None:
        ceiling = advantages.abs() * c_clip
        loss = torch.where((advantages < 0) & (loss > ceiling), ceiling, loss)

    taken, is_truncated = loss_mask, torch.zeros_like(loss_mask)
    if proximal_logprobs is not None:
        weight, taken_out, is_truncated = importance_weights(
            proximal - old_logprobs,
            loss_mask,
            cu_seqlens,
            cap=behav_imp_weight_cap,
            floor=behav_imp_weight_floor,
            mode=behav_imp_weight_mode,
            level=behav_imp_weight_level,
        )
        loss, taken = loss * weight, loss_mask & ~taken_out
    if ratio.mask_high is not None or ratio.mask_low is not None or ratio.sequence_mask_low > 0:
        moved = ratio_of((logprobs - old_logprobs).detach(), loss_mask, cu_seqlens, ratio.level, ratio.length_norm)
        taken = taken & within_limits(moved, loss_mask, cu_seqlens, ratio)

    statistics = {"clip_fraction": is_clipped, "taken_out": ~taken, "truncated": is_truncated}
    return summed(masked(loss, taken), loss_mask, weights, **statistics)


def importance_sampling(
    logprobs: Tensor,
    old_logprobs: Tensor,
    proximal_logprobs: Tensor | None,
    advantages: Tensor,
    loss_mask: Tensor,
    cu_seqlens: Tensor,
    weights: Tensor,
    *,
    behav_imp_weight_cap: float | None,
    behav_imp_weight_floor: float | None,
    behav_imp_weight_mode: str,
    behav_imp_weight_level: str,
    ratio: RatioLimits,
) -> Loss:
    """The same without clipping, as in prime-rl."""
    return ppo(
        logprobs,
        old_logprobs,
        proximal_logprobs,
        advantages,
        loss_mask,
        cu_seqlens,
        weights,
        eps_clip=None,
        eps_clip_higher=None,
        c_clip=None,
        behav_imp_weight_cap=behav_imp_weight_cap,
        behav_imp_weight_floor=behav_imp_weight_floor,
        behav_imp_weight_mode=behav_imp_weight_mode,
        behav_imp_weight_level=behav_imp_weight_level,
        ratio=ratio,
    )
