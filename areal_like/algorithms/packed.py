"""Sums and look-ups over sequences that are packed one behind the other, and over groups of sequences."""

import torch
from torch import Tensor


def lengths(cu_seqlens: Tensor) -> Tensor:
    """Number of tokens of each sequence."""
    return cu_seqlens.diff().long()


def sequence_of_token(cu_seqlens: Tensor) -> Tensor:
    """For each token the number of its sequence."""
    counts = lengths(cu_seqlens)
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def repeat_per_token(values: Tensor, cu_seqlens: Tensor) -> Tensor:
    """A value of each sequence, repeated for each of its tokens."""
    return values.repeat_interleave(lengths(cu_seqlens))


def sum_of_sequence(values: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The sum over each sequence's tokens."""
    return values.new_zeros(len(cu_seqlens) - 1).index_add(0, sequence_of_token(cu_seqlens), values)


def last_token(mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Place of the last token of each sequence that the mask holds; -1 where it holds none."""
    places = mask.nonzero().squeeze(-1)
    found = places.new_full((len(cu_seqlens) - 1,), -1)
    return found.scatter_reduce(0, sequence_of_token(cu_seqlens)[places], places, "amax")


def renumber_groups(groups: Tensor) -> tuple[int, Tensor]:
    """How many groups there are, and for each row its own, from 0 on: group numbers count over a whole run."""
    known, group = torch.unique(groups, return_inverse=True)
    return len(known), group
