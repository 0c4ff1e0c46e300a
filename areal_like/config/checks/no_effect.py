"""Values without effect on a run: the plan reports them, and a start does not refuse them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation.models import generates, trained_models
from areal_like.config.checks.built_in_losses import loss_parameters
from areal_like.config.checks.not_built import changed_keys
from areal_like.config.checks.user_code import is_built_in
from areal_like.config.experiment import GRPOConfig, RWConfig, SFTConfig
from areal_like.config.problems import Problem
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.config.sections.trackers import TRACKERS, is_enabled

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

LOSS_SCALING_KEYS = ("initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis")
LORA_KEYS = ("lora_rank", "lora_alpha", "target_modules", "lora_dropout", "lora_modules_to_save")


def no_effect_problems(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Keys without effect on training: reported, but not refused."""
    for name in ("train_dataset", "valid_dataset"):
        data = getattr(config, name)
        if data is not None and data.num_workers:
            yield Problem(f"{name}.num_workers", "has no effect: all rows are read once, before the first step")
        if data is not None and data.loss_on != "answers" and not isinstance(config, SFTConfig):
            yield Problem(f"{name}.loss_on", "has no effect: only supervised training on given answers uses it")
    if config.valid_dataset is not None and not config.valid_dataset.shuffle:
        yield Problem("valid_dataset.shuffle", "has no effect: every evaluation uses the same rows with equal weight")
    if config.valid_dataset is not None and config.valid_dataset.drop_last:
        # The default; reported only where a user sets it.
        yield Problem("valid_dataset.drop_last", "has no effect: rows that do not fill a batch are evaluated, too")
    yield from _task_without_effect(config)
    if config.cluster.cluster_name != "local":
        yield Problem("cluster.cluster_name", "has no effect on the run: it is only shown in the plan")
    yield from _trackers_without_effect(config)
    clocks = [name for name in ("freq_steps", "freq_epochs", "freq_secs") if getattr(config.evaluator, name)]
    if config.train_dataset.fake is not None and config.valid_dataset is not None and config.valid_dataset.fake is None:
        yield Problem("valid_dataset", "has no effect beside train_dataset.fake, which replaces all data")
    elif config.valid_dataset is None and clocks:
        yield Problem(
            f"evaluator.{clocks[0]}", "has no effect: valid_dataset is null, so there is nothing to evaluate on"
        )
    for name, engine in trained_models(config):
        again = engine.activation_checkpointing
        if again is not None and again.freq != 1 and not engine.gradient_checkpointing:
            yield Problem(f"{name}.activation_checkpointing", f"has no effect: {name}.gradient_checkpointing is false")
        for key in (key for each in LORA_KEYS for key in changed_keys(config, f"{name}.{each}")):
            if not engine.use_lora:
                yield Problem(key, f"has no effect: {name}.use_lora is false")
        changed = [key for each in LOSS_SCALING_KEYS for key in changed_keys(config, f"{name}.optimizer.{each}")]
        if changed and "float16" not in (engine.dtype, engine.grad_reduce_dtype):
            yield Problem(changed[0], f"has no effect: losses are scaled for float16 only ({name}.dtype)")
    if isinstance(config, SFTConfig | RWConfig):
        for key in changed_keys(config, "evaluator.max_failed_share"):
            yield Problem(key, "has no effect: supervised training evaluates a loss, which every row has")
    if config.evaluator.pin and not (isinstance(config, GRPOConfig) and is_asynchronous(config)):
        yield Problem("evaluator.pin", "has no effect: every evaluation uses one version of the weights here")
    if generates(config):
        yield from _rollout_without_effect(config)
        yield from _loss_without_effect(config.actor)
        yield from _actor_without_effect(config)


def _trackers_without_effect(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Samples and distributions if there are none, or the tracker is off."""
    for name in TRACKERS:
        section = f"stats_logger.{name}"
        for key in changed_keys(config, f"{section}.log_extras"):
            if not is_enabled(name, config.stats_logger):
                yield Problem(key, f"has no effect: this tracker is off ({section})")
            elif not generates(config):
                yield Problem(key, "has no effect: supervised training samples no answers")


def _task_without_effect(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """A task beside rows from elsewhere."""
    if not isinstance(config, GRPOConfig | SFTConfig | RWConfig) or config.train_dataset.fake is not None:
        return
    name, path, valid = config.task.name, config.train_dataset.path, config.valid_dataset
    if name is None or path in ("", name):
        return
    brings = ["rewards"] if isinstance(config, GRPOConfig) and config.reward.name is None else []
    brings += ["the rows of valid_dataset"] if valid and valid.fake is None and valid.path in ("", name) else []
    only = f"only brings {' and '.join(brings)}" if brings else "has no effect"
    yield Problem("task.name", f"{only}: training rows come from {path} (train_dataset.path)")


def _loss_without_effect(actor: PPOActorConfig) -> Iterator[Problem]:
    """Keys of another loss than the selected one."""
    limits, weights = ("eps_clip_higher", "c_clip"), ("behav_imp_weight_cap", "behav_imp_weight_floor")
    reads = loss_parameters(actor.loss) if is_built_in(actor.loss) else {}
    unread = {f"actor.loss is {actor.loss}": tuple(name for name in (*limits, *weights) if name not in reads)}
    if is_built_in(actor.loss) and not actor.use_decoupled_loss:
        unread["actor.use_decoupled_loss is false"] = tuple(name for name in weights if name in reads)
    for why, names in unread.items():
        for name in names:
            if getattr(actor, name) is not None:
                yield Problem(f"actor.{name}", f"has no effect: {why}")
    if actor.behav_imp_weight_mode != "mask" and all(getattr(actor, name) is None for name in weights):
        yield Problem("actor.behav_imp_weight_mode", "has no effect: neither behav_imp_weight_cap nor _floor is set")
    # It also decides whose log-probabilities are recomputed.
    is_decoupled_alone = actor.use_decoupled_loss and not actor.recompute_logprob
    if is_decoupled_alone and is_built_in(actor.loss) and "proximal_logprobs" not in reads:
        yield Problem("actor.use_decoupled_loss", f"has no effect: actor.loss is {actor.loss}")
    if actor.kl_in != "reward" and not actor.kl_ctl:
        yield Problem("actor.kl_in", "has no effect: actor.kl_ctl is 0, so there is no penalty")


def _actor_without_effect(config: GRPOConfig) -> Iterator[Problem]:
    """Keys of a feature that another key turns off."""
    actor = config.actor
    unread: dict[str, tuple[str, ...]] = {
        "actor.use_decoupled_loss is false": ("behav_imp_weight_level",) if not actor.use_decoupled_loss else (),
        "actor.ratio.level is token": ("ratio.length_norm",) if actor.ratio.level == "token" else (),
        "actor.kl_ctl is 0, so there is no penalty": ("kl_estimator",) if not actor.kl_ctl else (),
        "actor.overlong_reward_penalty is false": (
            () if actor.overlong_reward_penalty else ("overlong_tokens", "overlong_penalty_factor")
        ),
    }
    reads = loss_parameters(actor.loss) if is_built_in(actor.loss) else {}
    if ignored := tuple(name for name in ("behav_imp_weight_level", "ratio") if name not in reads):
        unread[f"actor.loss is {actor.loss}"] = ignored
        if "ratio" in ignored:
            unread["actor.ratio.level is token"] = ()
    if not actor.log_agent_stats:
        unread["actor.log_agent_stats is false"] = ("log_agent_stats_keys",)
    elif not actor.log_agent_stats_keys:
        unread["actor.log_agent_stats_keys is empty"] = ("log_agent_stats",)
    reported = set()
    for why, names in unread.items():
        for key in (key for name in names for key in changed_keys(config, f"actor.{name}")):
            if key not in reported:
                yield Problem(key, f"has no effect: {why}")
            reported.add(key)


def is_asynchronous(config: GRPOConfig) -> bool:
    return config.async_training and config.rollout.max_head_offpolicyness > 0


def _rollout_without_effect(config: GRPOConfig) -> Iterator[Problem]:
    rollout, valid = config.rollout, config.valid_dataset
    if valid is not None and valid.batch_size != config.train_dataset.batch_size:
        yield Problem("valid_dataset.batch_size", "has no effect: servers limit how many rows are evaluated at once")
    if valid is not None and valid.pin_memory:
        yield Problem("valid_dataset.pin_memory", "has no effect: servers generate the answers of an evaluation")
    if rollout.server_type != "auto" and not rollout.server_addresses:
        yield Problem(
            "rollout.server_type", "has no effect: the run starts its own servers (rollout.server_addresses is empty)"
        )
    if not config.async_training and rollout.max_head_offpolicyness:
        yield Problem("rollout.max_head_offpolicyness", "has no effect while async_training is false")
    if is_asynchronous(config):
        return
    synchronous = "has no effect in synchronous mode"
    if rollout.schedule_policy != "round_robin":
        yield Problem("rollout.schedule_policy", f"{synchronous}: groups are assigned to servers by their number")
    if rollout.oversampling_factor > 1 and not (config.actor.dynamic_sampling and rollout.refill):
        yield Problem("rollout.oversampling_factor", f"{synchronous} unless actor.dynamic_sampling leaves groups out")
