"""Policy losses: PPO's clipped loss and its variants."""

import torch
from torch import Tensor

from areal_like.algorithms.losses.base import Loss, masked
from areal_like.algorithms.losses.entropy_and_kl import entropy_and_kl
from areal_like.algorithms.losses.ratio import importance_weights, ratio_of, within_limits
from areal_like.algorithms.statistics import statistics


def ppo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    weights: Tensor | None = None,
    proximal_logprobs: Tensor | None = None,
    eps_clip: float | None = 0.2,
    eps_clip_higher: float | None = None,
    c_clip: float | None = None,
    behav_imp_weight_cap: float | None = None,
    behav_imp_weight_floor: float | None = None,
    behav_imp_weight_mode: str = "mask",
    behav_imp_weight_level: str = "token",
    cu_seqlens: Tensor | None = None,
    ratio_level: str = "token",
    ratio_length_norm: bool = False,
    mask_high: float | None = None,
    mask_low: float | None = None,
    sequence_mask_low: float = 0.0,
    entropy: Tensor | None = None,
    entropy_coef: float = 0.0,
    reference_logprobs: Tensor | None = None,
    kl_coef: float = 0.0,
    kl_estimator: str = "k2",
) -> Loss:
    """PPO's clipped loss, weighted per token by `weights` (None: 1) and summed; `eps_clip` None disables clipping.

    `old_logprobs` are of the sampling policy. With `proximal_logprobs` (the policy at the start of the step) the loss
    is decoupled: the ratio is taken and clipped against these, and each token is weighted by proximal/sampler; a weight
    above `behav_imp_weight_cap` becomes 0 or the cap. Masked tokens still count in the denominator. `cu_seqlens` is
    required by options on whole sequences.
    """
    if c_clip is not None and c_clip <= 1:
        raise ValueError(f"actor.c_clip: must be more than 1, not {c_clip}")
    counts = loss_mask.bool()
    logprobs, old, advantages = (masked(x, counts) for x in (logprobs, old_logprobs, advantages))
    proximal = old if proximal_logprobs is None else masked(proximal_logprobs, counts)
    weights = torch.ones_like(advantages) if weights is None else masked(weights, counts)

    ratio = ratio_of(logprobs - proximal, counts, cu_seqlens, ratio_level, ratio_length_norm)
    loss = -advantages * ratio
    is_clipped = is_dual_clipped = torch.zeros_like(counts)
    if eps_clip is not None:
        highest = 1 + (eps_clip if eps_clip_higher is None else eps_clip_higher)
        clipped = -advantages * ratio.clamp(1 - eps_clip, highest)
        loss, is_clipped = torch.maximum(loss, clipped), loss < clipped
    if c_clip is not None:
        ceiling = advantages.abs() * c_clip
        is_dual_clipped = (advantages < 0) & (loss > ceiling)
        loss = torch.where(is_dual_clipped, ceiling, loss)

    behaviour, taken, is_truncated = torch.ones_like(loss), counts, torch.zeros_like(counts)
    if proximal_logprobs is not None:
        weight, behaviour, taken_out, is_truncated = importance_weights(
            proximal - old,
            counts,
            cu_seqlens,
            cap=behav_imp_weight_cap,
            floor=behav_imp_weight_floor,
            mode=behav_imp_weight_mode,
            level=behav_imp_weight_level,
        )
        loss, taken = loss * weight, counts & ~taken_out
    if mask_high is not None or mask_low is not None or sequence_mask_low > 0:
        moved = ratio_of((logprobs - old).detach(), counts, cu_seqlens, ratio_level, ratio_length_norm)
        taken = taken & within_limits(moved, counts, cu_seqlens, mask_high, mask_low, sequence_mask_low)

    policy = masked(loss * weights, taken)
    more, sums_of_more = entropy_and_kl(
        logprobs,
        old,
        counts,
        weights=weights,
        entropy=entropy,
        entropy_coef=entropy_coef,
        reference_logprobs=reference_logprobs,
        kl_coef=kl_coef,
        kl_estimator=kl_estimator,
    )
    sums = {
        "policy_loss": policy,
        "ratio": masked(ratio, counts),
        "clip_fraction": counts & is_clipped,
        "dual_clip_fraction": is_dual_clipped,
        "behaviour_weight": masked(behaviour, counts),
        "taken_out": counts & ~taken,
        "truncated": is_truncated,
        **sums_of_more,
    }
    maxima = {"ratio_max": sums["ratio"], "behaviour_weight_max": sums["behaviour_weight"]}
    return Loss(policy.sum() + more, statistics(counts, sums, maxima))
