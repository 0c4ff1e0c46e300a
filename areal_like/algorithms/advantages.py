"""Advantages of tokens: generalized advantage estimation and group baselines."""

from typing import NamedTuple

import torch
from torch import Tensor

from areal_like.algorithms.conversation_votes import conversation_sums, conversation_votes
from areal_like.algorithms.packed import last_token, renumber_groups, sequence_of_token

STD_EPS = 1e-8


class Advantages(NamedTuple):
    """Per token; 0 where the mask is off. `returns` are the targets of a critic."""

    advantages: Tensor
    returns: Tensor


def terminal_rewards(rewards: Tensor, loss_mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The reward of each sequence, placed at its last token in the loss: the policy did not choose what follows."""
    places = last_token(loss_mask, cu_seqlens)
    is_in_loss = places >= 0
    token_rewards = rewards.new_zeros(len(loss_mask))
    return token_rewards.index_put((places[is_in_loss],), rewards[is_in_loss])


def generalized_advantages(
    token_rewards: Tensor,
    loss_mask: Tensor,
    cu_seqlens: Tensor,
    *,
    values: Tensor | None = None,
    bootstrap: Tensor | None = None,
    discount: float,
    gae_lambda: float,
) -> Advantages:
    """Generalized advantage estimation over the tokens in the loss only: prompts and tool outputs take no time steps.
    `values` are those of the states in which the tokens were chosen (None: 0), `bootstrap` those of the states after
    the last token, one per sequence (None: 0, as after an end)."""
    places = loss_mask.bool().nonzero().squeeze(-1)
    sequence = sequence_of_token(cu_seqlens, len(loss_mask))[places]
    rewards = token_rewards[places].double()
    value = torch.zeros_like(rewards) if values is None else values[places].double()
    after = value.new_zeros(len(cu_seqlens) - 1) if bootstrap is None else bootstrap.double()

    continues = torch.zeros_like(places, dtype=torch.bool)
    continues[:-1] = sequence[1:] == sequence[:-1]
    next_value = torch.where(continues, value.roll(-1), after[sequence])
    delta = rewards + discount * next_value - value

    advantage = _discounted_sums(delta, sequence, discount * gae_lambda)
    zeros = torch.zeros(len(loss_mask), dtype=torch.float32, device=loss_mask.device)
    return Advantages(
        zeros.index_put((places,), advantage.float()), zeros.index_put((places,), (advantage + value).float())
    )


def _discounted_sums(x: Tensor, sequence: Tensor, factor: float) -> Tensor:
    """sum over k of factor**k * x[t + k] within t's sequence, in log2(tokens) passes; each pass doubles the span
    summed."""
    longest = int(torch.bincount(sequence).max()) if len(x) else 0
    width = 1
    while width < longest:
        reached = x[width:] * (sequence[width:] == sequence[:-width])
        x = torch.cat((x[:-width] + factor**width * reached, x[-width:]))
        width *= 2
    return x


def group_advantages(
    rewards: Tensor,
    groups: Tensor,
    answer_lengths: Tensor,
    votes: Tensor | None = None,
    *,
    length_weighted_mean: bool,
    leave_one_out: bool,
    neg_clipped: bool,
    std_norm: str | None,
    mean_norm: bool,
    conversations: Tensor | None = None,
) -> Tensor:
    """Rewards minus a baseline of their group, one per sequence, by `actor.advantage` in this order: baseline (weighted
    by answer length or not), leave-one-out, negatives to 0, division by the standard deviation of the group (`local`)
    or of all (`global`), or by the mean of the group, where that is above 0. Only rewards with a vote count
    (None: all); the others give 0. Those of one conversation count once in the
    baseline, as their mean."""
    num_groups, group = renumber_groups(groups)

    def group_sum(x: Tensor) -> Tensor:
        return x.new_zeros(num_groups).index_add(0, group, x)[group]

    votes = torch.ones_like(group, dtype=torch.bool) if votes is None else votes.bool()
    r = torch.where(votes, rewards.float(), 0.0).double()
    voted, voters, length = r, votes, answer_lengths.double()
    if conversations is not None:
        voted, voters = conversation_votes(r, votes, conversations)
        length = conversation_sums(length * votes, conversations)
    vote = voters.double()
    own = length if length_weighted_mean else torch.ones_like(r)
    weight = own * vote
    total = group_sum(weight)
    advantage = voted - group_sum(weight * voted) / total.clamp(min=1)
    if leave_one_out:
        others = total - own
        advantage = torch.where(others > 0, advantage * total / others.clamp(min=1), 0.0)
    advantage = advantage + (r - voted)
    if neg_clipped:
        advantage = advantage.clamp(min=0)
    if std_norm == "local":
        count = group_sum(vote)
        squares = group_sum(vote * (voted - group_sum(vote * voted) / count.clamp(min=1)).square())
        advantage = advantage / ((squares / (count - 1).clamp(min=1)).sqrt() + STD_EPS)
    elif std_norm == "global":
        voting = voted[voters]
        squares = (voting - voting.mean()).square().sum()
        advantage = advantage / ((squares / max(len(voting) - 1, 1)).sqrt() + STD_EPS)
    elif std_norm is not None:
        raise ValueError(f"actor.advantage.std_norm: {std_norm!r} is not one of local, global and null")
    if mean_norm:
        mean = group_sum(vote * voted) / group_sum(vote).clamp(min=1)
        advantage = torch.where(mean > 0, advantage / torch.where(mean > 0, mean, 1.0), 0.0)
    return torch.where(votes, advantage, 0.0).float()
