"""Reward shaping: changes to the rewards of sequences before advantages are computed."""

import torch
from torch import Tensor


def scale_rewards(rewards: Tensor, *, bias: float, scaling: float, clip: float) -> Tensor:
    """(rewards + bias) * scaling, then clipped to [-clip, clip]."""
    return ((rewards + bias) * scaling).clamp(-clip, clip)


def penalize_overlong(
    rewards: Tensor,
    lengths: Tensor,
    *,
    max_new_tokens: int,
    overlong_tokens: int | None,
    factor: float | None,
) -> Tensor:
    """Subtracts up to `factor` (None: 1), growing linearly over the last `overlong_tokens` (None: a fifth) before
    `max_new_tokens`. `lengths` counts generated tokens."""
    zone = max(1, max_new_tokens // 5) if overlong_tokens is None else overlong_tokens
    if zone > max_new_tokens:
        raise ValueError(
            f"actor.overlong_tokens: {zone} is more than actor.max_new_tokens={max_new_tokens}: "
            "every answer would be penalized; lower it"
        )
    excess = (lengths.to(rewards.dtype) - (max_new_tokens - zone)) / zone
    return rewards - excess.clamp(0.0, 1.0) * (1.0 if factor is None else factor)


def zero_truncated(rewards: Tensor, truncated: Tensor) -> Tensor:
    """Reward 0 for answers that were cut off at the length limit (`finish` is "length")."""
    return torch.where(truncated.bool(), 0.0, rewards)
