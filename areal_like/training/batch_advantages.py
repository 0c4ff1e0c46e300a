"""Advantages of a batch: from the rewards of all samples to the advantages of this rank's tokens."""

from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.algorithms import advantages, kl, normalization, reward_shaping
from areal_like.config.sections.actor import NormConfig, PPOActorConfig
from areal_like.data.votes import comparable, vote_rule
from areal_like.training.batch import REFERENCE, VALUES, TrainingBatch
from areal_like.training.world import World


class BatchAdvantages(NamedTuple):
    """Of this rank's tokens; 0 outside the loss. `returns` are the targets of the critic, before any normalization."""

    advantages: NDArray[np.float32]
    returns: NDArray[np.float32]


def shaped_rewards(batch: TrainingBatch, config: PPOActorConfig) -> Tensor:
    """Of all samples over all ranks, so that the baseline of a group or the batch is the same on every rank."""
    rewards = torch.from_numpy(batch.rewards_A)
    truncated, groups = torch.from_numpy(batch.truncated_A), torch.from_numpy(batch.groups_A)
    generated = torch.from_numpy(batch.generated_A)
    if config.zero_truncated_completions:
        rewards = reward_shaping.zero_truncated(rewards, truncated)
    if config.overlong_reward_penalty:
        rewards = reward_shaping.penalize_overlong(
            rewards,
            generated,
            max_new_tokens=config.max_new_tokens,
            overlong_tokens=config.overlong_tokens,
            factor=config.overlong_penalty_factor,
        )
    rewards = reward_shaping.scale_rewards(
        rewards, bias=config.reward_bias, scaling=config.reward_scaling, clip=config.reward_clip
    )
    conversations = None if batch.conversations_A is None else torch.from_numpy(batch.conversations_A)
    norm, group_keys = config.reward_norm, asdict(config.advantage)
    if norm is not None:
        votes = _votes(batch, config, in_groups="group" in (norm.mean_level, norm.std_level))
        rewards = _normalized(rewards, norm, groups, mask=votes, conversations=conversations)
    if any(group_keys.values()):
        votes = _votes(batch, config, in_groups=True)
        rewards = advantages.group_advantages(
            rewards, groups, generated, votes, conversations=conversations, **group_keys
        )
    if config.mask_no_eos_with_zero:
        rewards = reward_shaping.zero_truncated(rewards, truncated)
    return rewards


def _votes(batch: TrainingBatch, config: PPOActorConfig, in_groups: bool) -> Tensor:
    """The samples that count in baselines; the others get no advantage. `in_groups`: baselines of groups."""
    rule, facts = vote_rule(config), (batch.has_reward_A, batch.loss_tokens_A, batch.truncated_A)
    votes_A = np.array([rule.votes(*of_one) for of_one in zip(*(x.tolist() for x in facts), strict=True)], dtype=bool)
    if not in_groups:
        return torch.from_numpy(votes_A)
    whole = None if batch.agents is None else (batch.agents.prompts_A, batch.agents.episodes_A)
    return torch.from_numpy(comparable(votes_A, batch.groups_A, batch.conversations_A, whole))


def token_advantages(
    batch: TrainingBatch, config: PPOActorConfig, world: World, old: NDArray[np.float32]
) -> BatchAdvantages:
    """Uses the critic's values and the reference's log-probabilities where the sequences have them. `old` are the
    log-probabilities of the policy that the KL penalty is computed for."""
    sequences = batch.sequences
    fields, mask = sequences.fields, torch.from_numpy(sequences.target_mask)
    cu_seqlens = torch.from_numpy(np.concatenate([[0], np.cumsum(sequences.lengths_N)]).astype(np.int64))
    rewards_N = shaped_rewards(batch, config)[torch.from_numpy(batch.mine_N)]
    rewards = advantages.terminal_rewards(rewards_N, mask, cu_seqlens)
    if REFERENCE in fields and config.kl_in == "reward":
        rewards = rewards + kl.kl_rewards(
            torch.from_numpy(old),
            torch.from_numpy(fields[REFERENCE]),
            mask,
            coefficient=config.kl_ctl,
            estimator=config.kl_estimator,
        )
    advantages_T, returns = advantages.generalized_advantages(
        rewards,
        mask,
        cu_seqlens,
        values=torch.from_numpy(fields[VALUES]) if VALUES in fields else None,
        discount=config.discount,
        gae_lambda=config.gae_lambda,
    )
    if config.adv_norm is not None:
        groups = torch.from_numpy(np.repeat(batch.groups_A[batch.mine_N], sequences.lengths_N))
        advantages_T = _normalized(
            advantages_T, config.adv_norm, groups, mask=mask, num_groups=batch.num_groups, reduce=world.sum_tensor
        )
    return BatchAdvantages(advantages_T.numpy(), returns.numpy())


def mask_truncated(batch: TrainingBatch) -> None:
    """Removes the tokens of truncated answers from the loss."""
    sequences = batch.sequences
    is_kept = np.repeat(~batch.truncated_A[batch.mine_N], sequences.lengths_N)
    batch.sequences = replace(sequences, loss_mask=sequences.loss_mask.astype(bool) & is_kept)


def _normalized(values: Tensor, config: NormConfig, groups: Tensor, **over: Any) -> Tensor:
    return normalization.normalize(
        values,
        mean_level=config.mean_level,
        mean_leave1out=config.mean_leave1out,
        std_level=config.std_level,
        std_unbiased=config.std_unbiased,
        eps=config.eps,
        groups=groups,
        **over,
    )
