"""Aggregation of token losses: a sum of weighted token losses over a count of the whole batch.

The count covers all ranks and micro-batches (the sum of each part's `denominator`), so that the gradient does not
depend on how the batch is split.
"""

from torch import Tensor

from areal_like.algorithms.packed import repeat_per_token, sum_of_sequence

AGGREGATIONS = ("token_mean", "sequence_mean_token_sum", "sequence_mean_token_mean", "fixed_length")


def token_weights(aggregation: str, loss_mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The weight of each token's loss; 0 where the mask is off."""
    _check(aggregation)
    counted = loss_mask.bool().float()
    if aggregation != "sequence_mean_token_mean":
        return counted
    per_sequence = sum_of_sequence(counted, cu_seqlens).clamp(min=1)
    return counted / repeat_per_token(per_sequence, cu_seqlens, len(counted))


def denominator(aggregation: str, loss_mask: Tensor, cu_seqlens: Tensor, fixed_length: int | None = None) -> float:
    """This part's share of the divisor: tokens in the loss; sequences with such tokens; or `fixed_length` for each of
    these."""
    _check(aggregation)
    counted = loss_mask.bool().double()
    if aggregation == "token_mean":
        return float(counted.sum())
    num_sequences = float((sum_of_sequence(counted, cu_seqlens) > 0).sum())
    if aggregation != "fixed_length":
        return num_sequences
    if fixed_length is None:
        raise ValueError("fixed_length: required by the aggregation fixed_length; it is usually actor.max_new_tokens")
    return num_sequences * fixed_length


def _check(aggregation: str) -> None:
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"actor.loss_aggregation: {aggregation!r} is not one of {', '.join(AGGREGATIONS)}")
