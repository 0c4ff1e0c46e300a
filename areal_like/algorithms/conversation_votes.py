"""Votes of conversations: the samples of one conversation count once in baselines."""

import torch
from torch import Tensor

from areal_like.algorithms.packed import renumber_groups


def conversation_votes(values: Tensor, votes: Tensor, conversations: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over the voting values of its conversation, at each value; and which values vote for their
    conversation: the first one of each that votes."""
    vote, place = votes.double(), torch.arange(len(values))
    mean = conversation_sums(vote * values, conversations) / conversation_sums(vote, conversations).clamp(min=1)
    num_conversations, conversation = renumber_groups(conversations)
    first = torch.full((num_conversations,), len(values)).scatter_reduce(0, conversation[votes], place[votes], "amin")
    return mean, votes & (first[conversation] == place)


def conversation_sums(values: Tensor, conversations: Tensor) -> Tensor:
    """The sum over its conversation, at each value."""
    num_conversations, conversation = renumber_groups(conversations)
    return values.new_zeros(num_conversations).index_add(0, conversation, values)[conversation]
