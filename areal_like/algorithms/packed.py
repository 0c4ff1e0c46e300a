"""Sums and look-ups over packed sequences and over groups of sequences."""

import torch
from torch import Tensor


def lengths(cu_seqlens: Tensor) -> Tensor:
    """Number of tokens of each sequence."""
    return cu_seqlens.diff().long()


def sequence_of_token(cu_seqlens: Tensor, num_tokens: int) -> Tensor:
    """For each token the index of its sequence."""
    return repeat_per_token(torch.arange(len(cu_seqlens) - 1, device=cu_seqlens.device), cu_seqlens, num_tokens)


def repeat_per_token(values: Tensor, cu_seqlens: Tensor, num_tokens: int) -> Tensor:
    """The value of each sequence, repeated for each of its tokens. A GPU would have to be asked how many these are."""
    return values.repeat_interleave(lengths(cu_seqlens), output_size=num_tokens)


def sum_of_sequence(values: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The sum over each sequence's tokens."""
    return values.new_zeros(len(cu_seqlens) - 1).index_add(0, sequence_of_token(cu_seqlens, len(values)), values)


def last_token(mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Index of the last token of each sequence where the mask is on; -1 where it is off for the whole sequence."""
    places = mask.nonzero().squeeze(-1)
    last = places.new_full((len(cu_seqlens) - 1,), -1)
    return last.scatter_reduce(0, sequence_of_token(cu_seqlens, len(mask))[places], places, "amax")


def renumber_groups(groups: Tensor) -> tuple[int, Tensor]:
    """The number of groups, and each row's group numbered from 0: group numbers count over a whole run."""
    unique, group = torch.unique(groups, return_inverse=True)
    return len(unique), group
