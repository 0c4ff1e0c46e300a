"""Votes: which answers of a group count in its baseline.

An answer that is masked out of the loss, or has no reward, does not vote: the others would be compared with a number
from which nothing is learnt.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from areal_like.config.sections.actor import PPOActorConfig


class VoteRule(NamedTuple):
    masked_vote: bool = False
    """Answers outside of the loss vote too."""
    masks_truncated: bool = False
    """Truncated answers are outside of the loss."""

    def votes(self, has_reward: bool, loss_tokens: int, truncated: bool) -> bool:
        """Whether an answer votes. `loss_tokens` are those that its workflow left in the loss."""
        is_masked = loss_tokens == 0 or (truncated and self.masks_truncated)
        return has_reward and (self.masked_vote or not is_masked)


def vote_rule(actor: PPOActorConfig) -> VoteRule:
    return VoteRule(actor.masked_answers_vote, actor.mask_truncated_completions)


def comparable(
    votes_A: NDArray[np.bool_],
    groups_A: NDArray[np.int64],
    conversations_A: NDArray[np.int64] | None = None,
    whole: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> NDArray[np.bool_]:
    """The votes that others of their group are compared with: all but a single one left of several answers, which has
    no baseline and so no signal. Groups are numbered from 0. The samples of a conversation are one answer (None: each
    sample is one). `whole`: the group and the conversation of each sample with those of all agents, where groups and
    conversations are those of one agent: it is left alone too if only it has no sample in the others."""
    conversations_A = np.arange(len(groups_A)) if conversations_A is None else conversations_A
    prompts_A, episodes_A = (groups_A, conversations_A) if whole is None else whole
    everyone_A = np.ones(len(groups_A), dtype=bool)
    voters_A = _num_conversations(votes_A, groups_A, conversations_A)[groups_A]
    answers_A = _num_conversations(everyone_A, prompts_A, episodes_A)[prompts_A]
    compared_A: NDArray[np.bool_] = votes_A & ((voters_A > 1) | (answers_A == 1))
    return compared_A


def _num_conversations(
    chosen_A: NDArray[np.bool_], groups_A: NDArray[np.int64], conversations_A: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of each group: its conversations with a chosen sample."""
    _, first = np.unique(conversations_A[chosen_A], return_index=True)
    return np.bincount(groups_A[chosen_A][first], minlength=int(groups_A.max(initial=-1)) + 1)
