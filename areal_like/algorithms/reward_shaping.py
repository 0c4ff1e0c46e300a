"""Changes to rewards, one number per sequence, before advantages are made of them."""

import torch
from torch import Tensor


def scale_rewards(rewards: Tensor, *, bias: float = 0.0, scaling: float = 1.0, clip: float | None = None) -> Tensor:
    """(rewards + bias) * scaling, then clipped to between -clip and clip."""
    scaled = (rewards + bias) * scaling
    return scaled if clip is None else scaled.clamp(-clip, clip)


def penalize_overlong(
    rewards: Tensor,
    lengths: Tensor,
    *,
    max_new_tokens: int,
    overlong_tokens: int | None = None,
    factor: float | None = None,
) -> Tensor:
    """Takes off up to `factor` (None: 1), growing evenly over the last `overlong_tokens` (None: a fifth of all) before
    `max_new_tokens`. `lengths` counts generated tokens."""
    zone = max(1, max_new_tokens // 5) if overlong_tokens is None else overlong_tokens
    if zone > max_new_tokens:
        raise ValueError(
            f"actor.overlong_tokens: {zone} is more than actor.max_new_tokens={max_new_tokens}: "
            "every answer would be penalized; take a smaller number"
        )
    inside = (lengths.to(rewards.dtype) - (max_new_tokens - zone)) / zone
    return rewards - inside.clamp(0.0, 1.0) * (1.0 if factor is None else factor)


def zero_truncated(rewards: Tensor, truncated: Tensor) -> Tensor:
    """No reward for an answer whose generation ended for its length (`finish` is "length")."""
    return torch.where(truncated.bool(), 0.0, rewards)
