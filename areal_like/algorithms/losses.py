"""Losses as sums over tokens, and what is worth logging about them.

A sum is divided by a count of the whole batch (`aggregation.denominator`), never by one of the part at hand.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from areal_like.algorithms.packed import over_tokens, sum_of_sequence
from areal_like.algorithms.statistics import Statistics, statistics

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to this before exp: beyond it a ratio is without meaning, but must not become inf or nan."""


class Loss(NamedTuple):
    """`total`, over the tokens of the part at hand, carries the gradient."""

    total: Tensor
    statistics: Statistics


def ppo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    weights: Tensor | None = None,
    proximal_logprobs: Tensor | None = None,
    eps_clip: float = 0.2,
    eps_clip_higher: float | None = None,
    c_clip: float | None = None,
    behav_imp_weight_cap: float | None = None,
    cu_seqlens: Tensor | None = None,
    ratio_level: str = "token",
    ratio_length_norm: bool = False,
    mask_high: float | None = None,
    mask_low: float | None = None,
    sequence_mask_low: float = 0.0,
    entropy: Tensor | None = None,
    entropy_coef: float = 0.0,
) -> Loss:
    """PPO's clipped loss, weighted per token by `weights` (None: 1) and added up.

    `old_logprobs` are of the policy that sampled. With `proximal_logprobs` (the policy at the start of the step) the
    loss is decoupled: the ratio is taken and clipped against these, and each token weighted by how far they are from
    the sampler; above `behav_imp_weight_cap` that weight is 0. A token so taken out still counts in the denominator.
    `cu_seqlens` is needed by what looks at whole sequences.
    """
    if c_clip is not None and c_clip <= 1:
        raise ValueError(f"actor.c_clip: must be more than 1, but is {c_clip}")
    counts = loss_mask.bool()
    # Replaced before anything is computed: a product with 0 would still be nan, here or in the backward pass.
    logprobs, old, advantages = (_only(x, counts) for x in (logprobs, old_logprobs, advantages))
    proximal = old if proximal_logprobs is None else _only(proximal_logprobs, counts)
    weights = torch.ones_like(advantages) if weights is None else _only(weights, counts)

    ratio = _ratio(logprobs - proximal, counts, cu_seqlens, ratio_level, ratio_length_norm)
    highest = 1 + (eps_clip if eps_clip_higher is None else eps_clip_higher)
    unclipped, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - eps_clip, highest)
    loss, is_clipped = torch.maximum(unclipped, clipped), unclipped < clipped
    is_dual_clipped = torch.zeros_like(counts)
    if c_clip is not None:
        ceiling = advantages.abs() * c_clip
        is_dual_clipped = (advantages < 0) & (loss > ceiling)
        loss = torch.where(is_dual_clipped, ceiling, loss)

    behaviour, taken = torch.ones_like(loss), counts
    if proximal_logprobs is not None:
        behaviour = _exp(proximal - old).detach()
        loss = loss * behaviour
        if behav_imp_weight_cap is not None:
            taken = taken & (behaviour <= behav_imp_weight_cap)
    if mask_high is not None or mask_low is not None or sequence_mask_low > 0:
        moved = _ratio((logprobs - old).detach(), counts, cu_seqlens, ratio_level, ratio_length_norm)
        taken = taken & _within(moved, counts, cu_seqlens, mask_high, mask_low, sequence_mask_low)

    policy = _only(loss * weights, taken)
    total = policy.sum()
    sums = {
        "policy_loss": policy,
        "ratio": _only(ratio, counts),
        "clip_fraction": counts & is_clipped,
        "dual_clip_fraction": is_dual_clipped,
        "behaviour_weight": _only(behaviour, counts),
        "taken_out": counts & ~taken,
    }
    if entropy is not None:
        entropy = _only(entropy, counts)
        sums["entropy"] = entropy
        if entropy_coef:
            total = total - entropy_coef * (entropy * weights).sum()
    maxima = {"ratio_max": sums["ratio"], "behaviour_weight_max": sums["behaviour_weight"]}
    return Loss(total, statistics(counts, sums, maxima))


def cross_entropy(logprobs: Tensor, loss_mask: Tensor, *, weights: Tensor | None = None) -> Loss:
    """Supervised learning: minus the log-probability of each token in the loss, weighted by `weights` (None: 1)."""
    counts = loss_mask.bool()
    loss = -_only(logprobs, counts)
    weighted = loss if weights is None else loss * _only(weights, counts)
    return Loss(weighted.sum(), statistics(counts, {"nll": loss}, {}))


def off_policy(logprobs: Tensor, sampler_logprobs: Tensor, loss_mask: Tensor) -> Statistics:
    """How far the policy in training is from the one that sampled: difference of log-probabilities, KL of the sampler
    against the trainer (k3), and the weight by which trainer/sampler importance sampling would correct."""
    counts = loss_mask.bool()
    difference = _only(logprobs.detach(), counts) - _only(sampler_logprobs, counts)
    near = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    apart, weight = difference.abs(), _only(near.exp(), counts)
    sums = {"logprob_diff": apart, "kl": torch.expm1(near) - near, "weight": weight}
    return statistics(counts, sums, {"logprob_diff_max": apart, "weight_max": weight})


def _only(values: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, values, 0.0)


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _ratio(log_ratio: Tensor, counts: Tensor, cu_seqlens: Tensor | None, level: str, length_norm: bool) -> Tensor:
    """One ratio per token; at level `sequence` the same for all tokens of a sequence, each of which passes on its own
    gradient times it."""
    if level == "token":
        return _exp(log_ratio)
    if level != "sequence":
        raise ValueError(f"actor.ratio.level: {level!r} is none of token and sequence")
    assert cu_seqlens is not None, "a ratio per sequence needs cu_seqlens"
    joined = sum_of_sequence(log_ratio.detach(), cu_seqlens)
    if length_norm:
        joined = joined / sum_of_sequence(counts.to(joined.dtype), cu_seqlens).clamp(min=1)
    return _exp(over_tokens(joined, cu_seqlens) + (log_ratio - log_ratio.detach()))


def _within(
    ratio: Tensor,
    counts: Tensor,
    cu_seqlens: Tensor | None,
    mask_high: float | None,
    mask_low: float | None,
    sequence_mask_low: float,
) -> Tensor:
    kept = torch.ones_like(counts)
    if mask_high is not None:
        kept = kept & (ratio <= mask_high)
    if mask_low is not None:
        kept = kept & (ratio >= mask_low)
    if sequence_mask_low > 0:
        assert cu_seqlens is not None, "taking out whole sequences needs cu_seqlens"
        num_too_low = sum_of_sequence((counts & (ratio < sequence_mask_low)).long(), cu_seqlens)
        kept = kept & over_tokens(num_too_low == 0, cu_seqlens)
    return kept
