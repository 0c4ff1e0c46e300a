"""Sections `actor`, `ref` and `critic`: the models of reinforcement learning, and how they learn from rewards."""

from typing import Any

from areal_like.config.fields import config, key, must_follow, no_effect, optional_section, section
from areal_like.config.sections.train_engine import TrainEngineConfig


@config
class NormConfig:
    """Subtract a mean and divide by a standard deviation, over the batch or over each prompt's group."""

    mean_level: str | None = key("batch", choices=("batch", "group"))
    """What the mean is taken over. Null subtracts nothing."""

    mean_leave1out: bool = key(False)
    """Exclude an element from the mean that is subtracted from it, as RLOO does."""

    std_level: str | None = key("batch", choices=("batch", "group"))
    """What the standard deviation is taken over. Null only centres, as Dr. GRPO does."""

    std_unbiased: bool = key(True)
    """Divide squared deviations by n-1 instead of n."""

    eps: float = key(1e-5, ge=0)
    """Added to the standard deviation, so that a constant group does not divide by zero."""

    group_size: int = key("${gconfig.n_samples}", ge=1)
    """Sequences per prompt for the level `group`. Follows `gconfig.n_samples`."""


@config
class RatioConfig:
    """How the importance ratio of the loss is computed, and which tokens it excludes from the loss."""

    level: str = key("token", choices=("token", "sequence"))
    """One ratio per token, or one per sequence that all its tokens share (GSPO, together with `length_norm`)."""

    length_norm: bool = key(False, rules=(no_effect(unless="level", unless_is=("sequence",)),))
    """With level `sequence`: take the geometric mean over the tokens instead of their product."""

    mask_high: float | None = key(None, gt=0)
    """Tokens with a higher ratio are excluded from the loss. Null: no limit; prime-rl uses 8."""

    mask_low: float | None = key(None, ge=0)
    """Tokens with a lower ratio are excluded from the loss. Null: no limit; prime-rl uses 0.125."""

    sequence_mask_low: float = key(0.0, ge=0)
    """A sequence with any token whose ratio is lower than this is excluded from the loss. 0: off."""


@config
class AdvantageConfig:
    """Advantages relative to a prompt's group, instead of `reward_norm`: as soon as one key is set, a baseline of the
    group is subtracted from rewards."""

    std_norm: str | None = key(None, choices=("local", "global"))
    """Divide by the standard deviation of rewards: `local` of the group, `global` of the batch. Null: do not."""

    length_weighted_mean: bool = key(False)
    """Weight the group's rewards by answer length in the baseline."""

    leave_one_out: bool = key(False)
    """Exclude an answer's own reward from its baseline. Needs at least two answers per prompt."""

    neg_clipped: bool = key(False)
    """Set negative advantages to 0, before any scaling: only answers better than the baseline are learnt from."""

    mean_norm: bool = key(False)
    """Divide by the mean reward of the group, so that rare successes count more (MaxRL); for rewards of 0 and 1. An
    advantage is 0 where the mean is not above 0. Not together with `std_norm`."""


NO_PENALTY = no_effect("so there is no penalty", unless="kl_ctl")


@config
class PPOActorConfig(TrainEngineConfig):
    """A policy model, and how rewards become its gradient."""

    group_size: int = key("${gconfig.n_samples}", ge=1)
    """Answers per prompt that are compared with each other. Follows `gconfig.n_samples`."""

    ppo_n_minibatches: int = key(4, ge=1)
    """Optimizer steps per batch: the batch is split into this many parts with about as many tokens each."""

    eps_clip: float = key(0.2, gt=0)
    """Clipping range of the ratio between new and old policy, around 1."""

    eps_clip_higher: float | None = key(None, gt=0)
    """Clipping range above 1 (clip-higher of DAPO). Null: `eps_clip` on both sides."""

    c_clip: float | None = key(None, gt=1)
    """Dual clip: with a negative advantage the loss of a token is at most this times its size. Null: off."""

    temperature: float = key("${gconfig.temperature}", gt=0, rules=(must_follow(),))
    """Temperature by which logits are divided before log-probabilities are computed. Follows the sampling
    temperature."""

    reward_norm: NormConfig | None = optional_section(NormConfig)
    """Normalization of rewards, after scaling and clipping. Null: none; GRPO uses mean and deviation of the group."""

    reward_scaling: float = key(1.0)
    """Rewards are multiplied by this, after `reward_bias` has been added."""

    reward_bias: float = key(0.0)
    """Added to every reward, before scaling."""

    reward_clip: float = key(20.0, gt=0)
    """Rewards are clipped to [-reward_clip, reward_clip], after bias and scaling."""

    overlong_reward_penalty: bool = key(False)
    """Lower the reward of answers whose length approaches `max_new_tokens`; see the two keys below."""

    overlong_tokens: int | None = key(None, ge=1, rules=(no_effect(unless="overlong_reward_penalty"),))
    """Number of tokens before `max_new_tokens` over which the penalty grows from 0 to its full size. Null: a fifth of
    `max_new_tokens`."""

    overlong_penalty_factor: float | None = key(None, ge=0, rules=(no_effect(unless="overlong_reward_penalty"),))
    """Penalty at the full length. Null: 1."""

    mask_no_eos_with_zero: bool = key(False)
    """Give no reward at the end of a truncated answer: one whose generation stopped at the maximum length, not the
    longest of its batch."""

    discount: float = key(1.0, ge=0, le=1)
    """Discount of future rewards per token (gamma)."""

    gae_lambda: float = key(1.0, ge=0, le=1)
    """Lambda of generalized advantage estimation: 1 has no bias; lower values have less variance with a good critic."""

    adv_norm: NormConfig | None = optional_section(NormConfig)
    """Normalization of advantages over tokens. Null: none."""

    kl_ctl: float = key(0.1, ge=0)
    """Weight of the KL penalty against the reference model; `kl_in` selects where it is applied. 0: no penalty, and no
    reference model is loaded."""

    kl_estimator: str = key("k1", choices=("k1", "k2", "k3"), rules=(NO_PENALTY,))
    """How the KL divergence is estimated per token: log-ratio, half its square, or the low-variance positive one."""

    kl_in: str = key("reward", choices=("reward", "loss"), rules=(NO_PENALTY,))
    """`reward`: subtract the KL penalty from the reward of each token, so that it enters the advantages. `loss`: add it
    to the loss, with a gradient (GRPO as published: with `kl_estimator` k3)."""

    recompute_logprob: bool = key(False)
    """Compute log-probabilities of the batch with the trainer's model and use them as the old policy's, instead of the
    servers'. Costs one forward pass."""

    use_decoupled_loss: bool = key(False)
    """Clip against the policy at the start of the step, and weight tokens by its ratio to the policy that sampled them.
    For training on older samples; costs one forward pass."""

    behav_imp_weight_cap: float | None = key(None, gt=0)
    """With the decoupled loss: limit of a token's weight. `behav_imp_weight_mode` selects what happens above it. Null:
    no cap."""

    behav_imp_weight_floor: float | None = key(None, gt=0)
    """Lower limit of a token's weight, likewise. Null: no floor."""

    behav_imp_weight_mode: str = key("mask", choices=("mask", "truncate"))
    """What happens to a token whose weight is beyond `behav_imp_weight_cap` or `behav_imp_weight_floor`: `mask`
    excludes it (AReaL), `truncate` sets the weight to the limit (truncated importance sampling)."""

    behav_imp_weight_level: str = key(
        "token", choices=("token", "sequence", "geometric"), rules=(no_effect(unless="use_decoupled_loss"),)
    )
    """One weight per token, or one for all tokens of an answer: the product of theirs, or its geometric mean."""

    dynamic_sampling: bool = key(False)
    """Drop groups whose rewards are all equal, as they give no gradient. `rollout.refill` selects whether others
    replace them."""

    log_agent_stats: bool = key(False, rules=(no_effect(unless="log_agent_stats_keys"),))
    """Log statistics of numbers that a workflow puts into the `metrics` of its trajectories, such as turns or tool
    calls: mean, minimum and maximum over each step's batch. `log_agent_stats_keys` names them."""

    log_agent_stats_keys: list[str] = key(
        [],
        pattern=r"[^/*]+(/[^/*]+)*",
        pattern_hint="a name without *, with single slashes only inside",
        rules=(no_effect(unless="log_agent_stats"),),
    )
    """Names in a trajectory's `metrics`: NAME is logged as `rollout/agent/NAME/mean`, `/min` and `/max`, over the
    trajectories that have it. A name that no trajectory of the batch has is not logged; the first time there is a
    warning in the controller's log."""

    max_new_tokens: int = key("${gconfig.max_new_tokens}", ge=1)
    """Length at which the overlong penalty is full. Follows `gconfig.max_new_tokens`."""

    loss: str = key("ppo")
    """The policy loss. Built in are {losses}; `importance_sampling` is `ppo` without clipping. Or your own function, as
    `package.module.name`, `package.module:name` or `file.py:name`."""

    loss_args: dict[str, Any] = key({})
    """Further arguments of the loss, checked against its signature. Add one with `+actor.loss_args.name=`. Those of
    built-in losses and their defaults: {arguments of losses}."""

    loss_aggregation: str = key(
        "token_mean",
        choices=("token_mean", "sequence_mean_token_sum", "sequence_mean_token_mean", "fixed_length"),
    )
    """How token losses become one number: mean over tokens; mean over sequences of their sums or means; or sums divided
    by a fixed length (Dr. GRPO). Counts are taken over the whole batch and all ranks."""

    entropy_coef: float = key(0.0, ge=0)
    """Weight of an entropy bonus in the loss; it keeps the policy exploring."""

    advantage: AdvantageConfig = section(AdvantageConfig)
    """Advantages relative to the group as in prime-rl; use either this or `reward_norm`."""

    ratio: RatioConfig = section(RatioConfig)
    """How the importance ratio is computed, and which tokens it excludes."""

    mask_truncated_completions: bool = key(False)
    """Exclude truncated answers from the loss."""

    masked_answers_vote: bool = key(False)
    """Count answers that are excluded from the loss in the baselines and deviations of rewards, as AReaL and prime-rl
    do. By default only answers that are learnt from count; where fewer than two of a group are left, it has no signal.
    An answer without a reward never counts."""

    zero_truncated_completions: bool = key(False)
    """Set the reward of truncated answers to 0, before any normalization."""


@config
class PPOCriticConfig(TrainEngineConfig):
    """A model that predicts, at every token, the sum of future rewards."""

    ppo_n_minibatches: int = key(4, ge=1)
    """Optimizer steps per batch: the batch is split into this many parts with about as many tokens each."""

    eps_clip: float = key(0.5, gt=0)
    """Clipping range of a new value around the old one."""

    mask_no_eos_with_zero: bool = key(False, rules=(must_follow(),))
    """Give no reward to truncated answers. Follows the actor's key of the same name."""
