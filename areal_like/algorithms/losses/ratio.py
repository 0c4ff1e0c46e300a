"""Importance ratios of tokens or whole sequences, and their limits."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from areal_like.algorithms.losses.base import clamped_exp
from areal_like.algorithms.packed import repeat_per_token, sum_of_sequence

MODES = ("mask", "truncate")
LEVELS = {"token": ("token", False), "sequence": ("sequence", False), "geometric": ("sequence", True)}
"""Level of importance weights -> level and length_norm of the ratio."""


class RatioLimits(Protocol):
    """The keys of `actor.ratio`."""

    @property
    def level(self) -> str: ...
    @property
    def length_norm(self) -> bool: ...
    @property
    def mask_high(self) -> float | None: ...
    @property
    def mask_low(self) -> float | None: ...
    @property
    def sequence_mask_low(self) -> float: ...


def ratio_of(log_ratio: Tensor, counts: Tensor, cu_seqlens: Tensor, level: str, length_norm: bool) -> Tensor:
    """One ratio per token. At level `sequence` all tokens of a sequence share one (the product of the token ratios, or
    with `length_norm` their geometric mean); the gradient of each token is multiplied by it."""
    if level == "token":
        return clamped_exp(log_ratio)
    if level != "sequence":
        raise ValueError(f"actor.ratio.level: {level!r} is not one of token and sequence")
    joined = sum_of_sequence(log_ratio.detach(), cu_seqlens)
    if length_norm:
        joined = joined / sum_of_sequence(counts.to(joined.dtype), cu_seqlens).clamp(min=1)
    return clamped_exp(repeat_per_token(joined, cu_seqlens, len(log_ratio)) + (log_ratio - log_ratio.detach()))


def within_limits(ratio: Tensor, counts: Tensor, cu_seqlens: Tensor, limits: RatioLimits) -> Tensor:
    """Which tokens are within the limits; `sequence_mask_low` excludes whole sequences."""
    kept = torch.ones_like(counts)
    if limits.mask_high is not None:
        kept = kept & (ratio <= limits.mask_high)
    if limits.mask_low is not None:
        kept = kept & (ratio >= limits.mask_low)
    if limits.sequence_mask_low > 0:
        num_too_low = sum_of_sequence((counts & (ratio < limits.sequence_mask_low)).long(), cu_seqlens)
        kept = kept & repeat_per_token(num_too_low == 0, cu_seqlens, len(ratio))
    return kept


class ImportanceWeights(NamedTuple):
    """The weight per token, and where a limit masked or truncated it."""

    weight: Tensor
    taken_out: Tensor
    truncated: Tensor


def importance_weights(
    log_ratio: Tensor,
    counts: Tensor,
    cu_seqlens: Tensor,
    *,
    cap: float | None,
    floor: float | None,
    mode: str,
    level: str,
) -> ImportanceWeights:
    """Weights that correct for a different sampler, without gradient. Beyond the limits a weight is 0 (`mask`) or the
    limit (`truncate`). `level` is token, sequence (the product over its tokens) or geometric (their geometric mean)."""
    if mode not in MODES:
        raise ValueError(f"actor.behav_imp_weight_mode: {mode!r} is not one of {', '.join(MODES)}")
    if level not in LEVELS:
        raise ValueError(f"actor.behav_imp_weight_level: {level!r} is not one of {', '.join(LEVELS)}")
    ratio = ratio_of(log_ratio.detach(), counts, cu_seqlens, *LEVELS[level])
    beyond = torch.zeros_like(counts)
    if cap is not None:
        beyond = beyond | (counts & (ratio > cap))
    if floor is not None:
        beyond = beyond | (counts & (ratio < floor))
    none = torch.zeros_like(counts)
    if mode == "mask":
        return ImportanceWeights(torch.where(beyond, 0.0, ratio), beyond, none)
    weight = ratio if cap is None and floor is None else ratio.clamp(floor, cap)
    return ImportanceWeights(weight, none, beyond)
