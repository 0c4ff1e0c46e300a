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


def comparable(votes_A: NDArray[np.bool_], groups_A: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The votes that others of their group are compared with: all but a single one left of several answers, which has
    no baseline and so no signal. Groups are numbered from 0."""
    voters, answers = np.bincount(groups_A, votes_A), np.bincount(groups_A)
    compared_A: NDArray[np.bool_] = votes_A & ((voters > 1) | (answers == 1))[groups_A]
    return compared_A
