"""The policy: its model, and how it learns from rewards."""

from typing import Any

from areal_like.config.fields import config, key, optional_section, section
from areal_like.config.sections.train_engine import TrainEngineConfig


@config
class NormConfig:
    """Subtract a mean and divide by a standard deviation, over the batch or over each prompt's group."""

    mean_level: str | None = key("batch", choices=("batch", "group"))
    """What the mean is taken over. Null subtracts nothing."""

    mean_leave1out: bool = key(False)
    """Leave an element itself out of the mean that is subtracted from it, as RLOO does."""

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
    """How the importance ratio of the loss is formed, and which tokens it takes out of the loss."""

    level: str = key("token", choices=("token", "sequence"))
    """One ratio per token, or one per sequence that all its tokens share (GSPO, together with `length_norm`)."""

    length_norm: bool = key(False)
    """With level `sequence`: take the geometric mean over the tokens instead of their product."""

    mask_high: float | None = key(None, gt=0)
    """Tokens with a higher ratio do not count in the loss. Null: no limit; 8 is what prime-rl takes."""

    mask_low: float | None = key(None, ge=0)
    """Tokens with a lower ratio do not count in the loss. Null: no limit; 0.125 is what prime-rl takes."""

    sequence_mask_low: float = key(0.0, ge=0)
    """A sequence with any token whose ratio is lower than this does not count at all. 0: off."""


@config
class AdvantageConfig:
    """Advantages relative to a prompt's group, instead of `reward_norm`: as soon as one key is set, rewards are
    measured against a baseline of their group."""

    std_norm: str | None = key(None, choices=("local", "global"))
    """Divide by the standard deviation of rewards: `local` of the group, `global` of the batch. Null: do not."""

    length_weighted_mean: bool = key(False)
    """Weight the group's rewards by answer length in the baseline, so that long answers count for more."""

    leave_one_out: bool = key(False)
    """Leave an answer's own reward out of its baseline. Needs at least two answers per prompt."""

    neg_clipped: bool = key(False)
    """Set negative advantages to 0, before any scaling: learn only from answers better than the baseline."""


@config
class PPOActorConfig(TrainEngineConfig):
    """A policy model with everything that turns rewards into a gradient."""

    group_size: int = key("${gconfig.n_samples}", ge=1)
    """Answers per prompt that are compared with each other. Follows `gconfig.n_samples`."""

    ppo_n_minibatches: int = key(4, ge=1)
    """Optimizer steps per batch: it is cut into so many parts of about equal size in tokens."""

    eps_clip: float = key(0.2, gt=0)
    """How far from 1 the ratio between new and old policy may go before it brings no further gain."""

    eps_clip_higher: float | None = key(None, gt=0)
    """The same towards above 1 alone (clip-higher of DAPO). Null: `eps_clip` both ways."""

    c_clip: float | None = key(None, gt=1)
    """Dual clip: with a negative advantage the loss of a token is at most this times its size. Null: off."""

    temperature: float = key("${gconfig.temperature}", gt=0)
    """Temperature by which logits are divided before log-probabilities are taken. Must be the one that was sampled
    with, which it follows."""

    reward_norm: NormConfig | None = optional_section(NormConfig)
    """Normalization of rewards, after scaling and clipping. Null: none; GRPO wants mean and deviation of the group."""

    reward_scaling: float = key(1.0)
    """Rewards are multiplied by this, after `reward_bias` has been added."""

    reward_bias: float = key(0.0)
    """Added to every reward, before scaling."""

    reward_clip: float = key(20.0, gt=0)
    """Rewards are clipped to between minus this and this, after bias and scaling."""

    overlong_reward_penalty: bool = key(False)
    """Lower the reward of answers that come near `max_new_tokens`; the two keys below say where and how much."""

    overlong_tokens: int | None = key(None, ge=1)
    """Width of the zone before `max_new_tokens` over which the penalty grows from nothing to its full size. Null: a
    fifth of `max_new_tokens`."""

    overlong_penalty_factor: float | None = key(None, ge=0)
    """Penalty at the full length. Null: 1."""

    mask_no_eos_with_zero: bool = key(False)
    """Give no reward at the end of an answer that was cut off at its maximum length. Cut off means that generation
    ended for its length, not that the answer is the longest of its batch."""

    discount: float = key(1.0, ge=0, le=1)
    """Discount of future rewards per token (gamma)."""

    gae_lambda: float = key(1.0, ge=0, le=1)
    """Lambda of generalized advantage estimation: 1 has no bias, less has less variance with a good critic."""

    adv_norm: NormConfig | None = optional_section(NormConfig)
    """Normalization of advantages over tokens. Null: none."""

    kl_ctl: float = key(0.1, ge=0)
    """Weight of the KL penalty against the reference model; `kl_in` says where it goes. 0: no penalty, and no
    reference model is loaded."""

    kl_estimator: str = key("k1", choices=("k1", "k2", "k3"))
    """How the KL divergence is estimated per token: log-ratio, half its square, or the low-variance positive one."""

    kl_in: str = key("reward", choices=("reward", "loss"))
    """Take the KL penalty off the reward of each token, so that it goes through advantages; or add it to the loss, so
    that its own gradient counts (GRPO as it was published: with `kl_estimator` k3)."""

    recompute_logprob: bool = key(False)
    """Compute log-probabilities of the batch with the trainer's model and use them as the old policy's, instead of the
    servers'. Costs one forward pass."""

    use_decoupled_loss: bool = key(False)
    """Clip against the policy at the start of the step, and weigh tokens by how far it has moved from the one that
    sampled. For training on older samples; costs one forward pass."""

    behav_imp_weight_cap: float | None = key(None, gt=0)
    """With the decoupled loss: tokens whose weight is above this do not count, or count by this at most, as
    `behav_imp_weight_mode` says. Null: no cap."""

    behav_imp_weight_floor: float | None = key(None, gt=0)
    """The same for tokens whose weight is below this. Null: no floor."""

    behav_imp_weight_mode: str = key("mask", choices=("mask", "truncate"))
    """What becomes of a token whose weight is beyond `behav_imp_weight_cap` or `behav_imp_weight_floor`: it does not
    count (AReaL), or counts by the limit (truncated importance sampling)."""

    behav_imp_weight_level: str = key("token", choices=("token", "sequence", "geometric"))
    """One weight per token, or one for all tokens of an answer: the product of theirs, or its geometric mean."""

    dynamic_sampling: bool = key(False)
    """Leave out groups whose rewards are all equal, as they teach nothing. Whether others take their place is for
    `rollout.refill` to say."""

    log_agent_stats: bool = key(False)
    """Log statistics of whole agent trajectories, for workflows of several turns."""

    log_agent_stats_keys: list[str] = key([])
    """Names of the trajectory's fields whose statistics are logged, when `log_agent_stats` is on."""

    max_new_tokens: int = key("${gconfig.max_new_tokens}", ge=1)
    """Length that the overlong penalty measures against. Follows `gconfig.max_new_tokens`."""

    loss: str = key("ppo")
    """The loss: `ppo`; `importance_sampling`, the same without any clip (prime-rl, with limits in `ratio`); or your own
    function as `package.module.name`, `package.module:name` or `file.py:name`."""

    loss_args: dict[str, Any] = key({})
    """Further arguments of a loss of your own, checked against its signature. New names may be added with
    `+actor.loss_args.name=`."""

    loss_aggregation: str = key(
        "token_mean",
        choices=("token_mean", "sequence_mean_token_sum", "sequence_mean_token_mean", "fixed_length"),
    )
    """How token losses become one number: mean over tokens; sums or means per sequence and then the mean of these; or
    sums over a fixed length (Dr. GRPO). Counts are those of the whole batch over all ranks."""

    entropy_coef: float = key(0.0, ge=0)
    """Weight of an entropy bonus in the loss, against collapse of exploration."""

    advantage: AdvantageConfig = section(AdvantageConfig)
    """Advantages relative to the group in the manner of prime-rl; use either this or `reward_norm`."""

    ratio: RatioConfig = section(RatioConfig)
    """How the importance ratio is formed and which tokens it takes out."""

    mask_truncated_completions: bool = key(False)
    """Take answers that were cut off at their maximum length out of the loss."""

    zero_truncated_completions: bool = key(False)
    """Count the reward of answers that were cut off at their maximum length as 0, before any normalization."""


@config
class PPOCriticConfig(TrainEngineConfig):
    """A model that predicts, at every token, the reward still to come."""

    ppo_n_minibatches: int = key(4, ge=1)
    """Optimizer steps per batch: it is cut into so many parts of about equal size in tokens."""

    eps_clip: float = key(0.5, gt=0)
    """How far a new value may be from the old one before it brings no further gain."""

    mask_no_eos_with_zero: bool = key(False)
    """Whether cut-off answers are left without their reward. Follows the actor's key of the same name."""
