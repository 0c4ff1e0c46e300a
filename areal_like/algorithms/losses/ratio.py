"""Importance ratios: of tokens or of whole sequences, and which of them are too far off."""

from typing import NamedTuple

import torch
from torch import Tensor

from areal_like.algorithms.losses.base import clamped_exp
from areal_like.algorithms.packed import repeat_per_token, sum_of_sequence

MODES = ("mask", "truncate")
LEVELS = {"token": ("token", False), "sequence": ("sequence", False), "geometric": ("sequence", True)}
"""Of importance weights -> level and length_norm of the ratio."""


def ratio_of(log_ratio: Tensor, counts: Tensor, cu_seqlens: Tensor | None, level: str, length_norm: bool) -> Tensor:
    """One ratio per token; at level `sequence` the same for all tokens of a sequence (their product, or with
    `length_norm` its geometric mean), each of which passes on its own gradient times it."""
    if level == "token":
        return clamped_exp(log_ratio)
    if level != "sequence":
        raise ValueError(f"actor.ratio.level: {level!r} is none of token and sequence")
    assert cu_seqlens is not None, "a ratio per sequence needs cu_seqlens"
    joined = sum_of_sequence(log_ratio.detach(), cu_seqlens)
    if length_norm:
        joined = joined / sum_of_sequence(counts.to(joined.dtype), cu_seqlens).clamp(min=1)
    return clamped_exp(repeat_per_token(joined, cu_seqlens) + (log_ratio - log_ratio.detach()))


def within_limits(
    ratio: Tensor,
    counts: Tensor,
    cu_seqlens: Tensor | None,
    mask_high: float | None,
    mask_low: float | None,
    sequence_mask_low: float,
) -> Tensor:
    """Which tokens are not so far off that they, or their whole sequence, are better left out."""
    kept = torch.ones_like(counts)
    if mask_high is not None:
        kept = kept & (ratio <= mask_high)
    if mask_low is not None:
        kept = kept & (ratio >= mask_low)
    if sequence_mask_low > 0:
        assert cu_seqlens is not None, "taking out whole sequences needs cu_seqlens"
        num_too_low = sum_of_sequence((counts & (ratio < sequence_mask_low)).long(), cu_seqlens)
        kept = kept & repeat_per_token(num_too_low == 0, cu_seqlens)
    return kept


class ImportanceWeights(NamedTuple):
    """By what each token is multiplied (`weight`), what that was before any limit, and where a limit took hold."""

    weight: Tensor
    unlimited: Tensor
    taken_out: Tensor
    truncated: Tensor


def importance_weights(
    log_ratio: Tensor,
    counts: Tensor,
    cu_seqlens: Tensor | None,
    *,
    cap: float | None,
    floor: float | None,
    mode: str,
    level: str,
) -> ImportanceWeights:
    """Weights that correct for another sampler, without a gradient. Outside of the limits a weight is 0 (`mask`), or
    the limit itself (`truncate`). `level` is token, sequence (the product over its tokens) or geometric (their mean).
    """
    if mode not in MODES:
        raise ValueError(f"actor.behav_imp_weight_mode: {mode!r} is none of {', '.join(MODES)}")
    if level not in LEVELS:
        raise ValueError(f"actor.behav_imp_weight_level: {level!r} is none of {', '.join(LEVELS)}")
    found = ratio_of(log_ratio.detach(), counts, cu_seqlens, *LEVELS[level])
    outside = torch.zeros_like(counts)
    if cap is not None:
        outside = outside | (counts & (found > cap))
    if floor is not None:
        outside = outside | (counts & (found < floor))
    nowhere = torch.zeros_like(counts)
    if mode == "mask":
        return ImportanceWeights(torch.where(outside, 0.0, found), found, outside, nowhere)
    weight = found if cap is None and floor is None else found.clamp(floor, cap)
    return ImportanceWeights(weight, found, nowhere, outside)
