"""Values without effect on a run that depend on several keys; the others are declared by the keys themselves."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation.models import generates, starts_servers, trained_models
from areal_like.config.benchmarks import INTERVALS, best_clock, brings_reward, clock_of, is_on
from areal_like.config.checks.agent import plays_verifiers, runs_agents
from areal_like.config.checks.built_in_code import loss_arguments, loss_parameters
from areal_like.config.checks.key_rules import changed_keys, unread_values
from areal_like.config.checks.user_code import is_built_in
from areal_like.config.environments import frequencies
from areal_like.config.experiment import GRPOConfig, RWConfig, SFTConfig
from areal_like.config.problems import Problem, plural
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.config.sections.curriculum import BY_ENVIRONMENT, ONLINE
from areal_like.config.sections.data import paths_of
from areal_like.config.sections.reward import REWARD_OF_TASK, configured_rewards
from areal_like.config.sections.trackers import TRACKERS, is_enabled
from areal_like.config.sections.train_engine import TrainEngineConfig

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

LEARNING_KEYS = (
    *(name for name in PPOActorConfig.__dataclass_fields__ if name not in TrainEngineConfig.__dataclass_fields__),
    *("optimizer", "grad_reduce_dtype", "use_lora", "weight_update_mode"),
)
"""Of the actor's section: a model that is not trained does not read them."""
PROGRAM_KEYS = ("command", "function", "reward_from", "timeout_s", "max_concurrent", "max_memory_gb")
"""Of `agent`: the others are read for the calls of environments of verifiers, too."""
VERIFIERS_KEYS = ("processes", "max_concurrent", "timeout_s")
"""Of `environments`."""
LOSS_SCALING_KEYS = ("initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis")


def no_effect_problems(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Reported, but not refused."""
    if config.valid_dataset is not None and config.valid_dataset.drop_last:
        # The default; reported only where a user sets it.
        yield Problem("valid_dataset.drop_last", "has no effect: rows that do not fill a batch are evaluated, too")
    if isinstance(config, GRPOConfig):
        yield from _curriculum_without_effect(config)
    yield from _task_without_effect(config)
    yield from _trackers_without_effect(config)
    clocks = [name for name in INTERVALS if getattr(config.evaluator, name)]
    if config.train_dataset.fake is not None and config.valid_dataset is not None and config.valid_dataset.fake is None:
        yield Problem("valid_dataset", "has no effect beside train_dataset.fake, which replaces all data")
    elif config.valid_dataset is None and clocks and not config.evaluator.benchmarks:
        yield Problem(
            f"evaluator.{clocks[0]}", "has no effect: valid_dataset is null, so there is nothing to evaluate on"
        )
    if config.saver.best is not None and not is_on(best_clock(config)):
        yield Problem("saver.best", "has no effect: there is no evaluation to compare; set evaluator.freq_steps")
    idle = [each.name for each in config.evaluator.benchmarks if not is_on(clock_of(config.evaluator, each))]
    if idle:
        message = f"{', '.join(idle)} has no effect without an interval; set its freq_steps, or evaluator.freq_steps"
        yield Problem("evaluator.benchmarks", message)
    for index, each in enumerate(config.evaluator.benchmarks):
        for name in ("timeout_s", "sandbox", "processes"):
            if getattr(each.reward, name) is not None and not brings_reward(each):
                message = f"has no effect: {each.name} has no reward of its own; set reward.{name}, or its reward.name"
                yield Problem(f"evaluator.benchmarks.{index}.reward.{name}", message)
    for name, engine in trained_models(config):
        again = engine.activation_checkpointing
        if again is not None and again.freq != 1 and not engine.gradient_checkpointing:
            yield Problem(f"{name}.activation_checkpointing", f"has no effect: {name}.gradient_checkpointing is false")
        changed = [key for each in LOSS_SCALING_KEYS for key in changed_keys(config, f"{name}.optimizer.{each}")]
        if changed and name != "ref" and "float16" not in (engine.dtype, engine.grad_reduce_dtype):
            yield Problem(changed[0], f"has no effect: losses are scaled for float16 only ({name}.dtype)")
    if config.evaluator.pin and not (isinstance(config, GRPOConfig) and is_asynchronous(config)):
        yield Problem("evaluator.pin", "has no effect: every evaluation uses one version of the weights here")
    if generates(config):
        yield from _agent_without_effect(config)
        yield from _environments_without_effect(config)
        yield from _reference_without_effect(config)
        yield from _rollout_without_effect(config)
        yield from _loss_without_effect(config.actor)
        yield from _unread_by_loss(config.actor, config)


def _agent_without_effect(config: GRPOConfig) -> Iterator[Problem]:
    if runs_agents(config):
        return
    unread = [f"agent.{name}" for name in PROGRAM_KEYS] if plays_verifiers(config) else ["agent"]
    for path in unread:
        for key in changed_keys(config, path):
            yield Problem(key, "has no effect: no workflow is agent (workflow.name)")


def _environments_without_effect(config: GRPOConfig) -> Iterator[Problem]:
    if not plays_verifiers(config):
        for name in VERIFIERS_KEYS:
            for key in changed_keys(config, f"environments.{name}"):
                yield Problem(key, "has no effect: there is no environment of verifiers (environments.train)")
    unread, why = _unread_of_mix(config)
    for name in unread:
        for key in changed_keys(config, f"environments.mix.{name}"):
            yield Problem(key, f"has no effect: {why}")


def _unread_of_mix(config: GRPOConfig) -> tuple[tuple[str, ...], str]:
    """Keys of `environments.mix`, and the reason."""
    mix, trained = config.environments.mix, config.environments.train
    if len(trained) < 2:
        count = plural(len(trained), "environment")
        unread = ("strategy", "probabilities", "stopping_strategy", "seed")
        return unread, f"nothing is mixed with {count} (environments.train)"
    if config.curriculum.type == BY_ENVIRONMENT:
        return ("strategy", "stopping_strategy", "seed"), f"curriculum.type={BY_ENVIRONMENT} draws the environments"
    if mix.strategy == "concatenate":
        return ("stopping_strategy", "seed"), "environments.mix.strategy is concatenate"
    if frequencies(mix, trained) is None:
        return ("seed",), "without environments.mix.probabilities or a ratio environments take turns"
    return (), ""


def _trackers_without_effect(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Samples and distributions if there are none, or the tracker is off."""
    for name in TRACKERS:
        section = f"stats_logger.{name}"
        for key in changed_keys(config, f"{section}.log_extras"):
            if not is_enabled(name, config.stats_logger):
                yield Problem(key, f"has no effect: this tracker is off ({section})")
            elif not generates(config):
                yield Problem(key, "has no effect: supervised training samples no answers")


def _reference_without_effect(config: GRPOConfig) -> Iterator[Problem]:
    """Those of learning, unless a rule of the key reports it."""
    if config.actor.kl_ctl > 0:
        reported = {problem.key for problem in unread_values(config)}
        for name in LEARNING_KEYS:
            for key in changed_keys(config, f"ref.{name}"):
                if key not in reported:
                    yield Problem(key, "has no effect: the reference model is not trained")


def _task_without_effect(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """A task beside rows from elsewhere."""
    if not isinstance(config, GRPOConfig | SFTConfig | RWConfig) or config.train_dataset.fake is not None:
        return
    name, path, valid = config.task.name, config.train_dataset.path, config.valid_dataset
    if name is None or path in ("", name):
        return
    brings = ["rewards"] if isinstance(config, GRPOConfig) and _uses_reward_of_task(config) else []
    brings += ["the rows of valid_dataset"] if valid and valid.fake is None and valid.path in ("", name) else []
    only = f"only brings {' and '.join(brings)}" if brings else "has no effect"
    come_from = " and ".join(paths_of(path))
    yield Problem("task.name", f"{only}: training rows come from {come_from} (train_dataset.path)")


def _uses_reward_of_task(config: GRPOConfig) -> bool:
    rewards = configured_rewards(config.reward)
    return not rewards or any(each.name == REWARD_OF_TASK for each in rewards)


def _loss_without_effect(actor: PPOActorConfig) -> Iterator[Problem]:
    """Keys of another loss than the selected one."""
    limits, weights = ("eps_clip_higher", "c_clip"), ("behav_imp_weight_cap", "behav_imp_weight_floor")
    reads = loss_parameters(actor.loss)
    unread = {_loss_text(actor): tuple(name for name in (*limits, *weights) if name not in reads)}
    if not actor.use_decoupled_loss:
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
        yield Problem("actor.use_decoupled_loss", f"has no effect: {_loss_text(actor)}")


def _loss_text(actor: PPOActorConfig) -> str:
    """The selected loss, with its own arguments."""
    own = ", ".join(loss_arguments(actor.loss))
    return f"actor.loss is {actor.loss}" + (f"; its arguments (actor.loss_args) are {own}" if own else "")


def _unread_by_loss(actor: PPOActorConfig, config: GRPOConfig) -> Iterator[Problem]:
    """Keys that the loss does not read; those that have no effect by a rule of their own are reported by it."""
    reads = loss_parameters(actor.loss)
    reported = {"actor.ratio.length_norm"} if actor.ratio.level == "token" else set()
    reported |= set() if actor.use_decoupled_loss else {"actor.behav_imp_weight_level"}
    for name in ("eps_clip", "behav_imp_weight_level", "ratio"):
        for key in changed_keys(config, f"actor.{name}") if name not in reads else ():
            if key not in reported:
                yield Problem(key, f"has no effect: {_loss_text(actor)}")


def is_asynchronous(config: GRPOConfig) -> bool:
    return config.async_training and config.rollout.max_head_offpolicyness > 0


def _curriculum_without_effect(config: GRPOConfig) -> Iterator[Problem]:
    keys, seed = config.curriculum, config.seed
    draws = f"curriculum.sampler.name={keys.sampler.name}" if keys.sampler.name else f"curriculum.type={keys.type}"
    if keys.sampler.name is None and keys.type == "none":
        if keys.seed not in (None, seed):
            yield Problem("curriculum.seed", "has no effect: rows are not drawn; set curriculum.type or a sampler")
    elif not config.train_dataset.shuffle:
        yield Problem("train_dataset.shuffle", f"has no effect: {draws} draws rows")


def _rollout_without_effect(config: GRPOConfig) -> Iterator[Problem]:
    rollout = config.rollout
    if not config.async_training and rollout.max_head_offpolicyness:
        yield Problem("rollout.max_head_offpolicyness", "has no effect while async_training is false")
    if rollout.server_type != "auto" and starts_servers(config):
        own = "rollout.server_addresses is empty, so the run starts its own servers"
        yield Problem("rollout.server_type", f"has no effect: {own}")
    if is_asynchronous(config):
        return
    synchronous = "has no effect in synchronous mode"
    if rollout.schedule_policy != "round_robin":
        yield Problem("rollout.schedule_policy", f"{synchronous}: groups are assigned to servers by their number")
    keys = config.curriculum
    leaves_out = config.actor.dynamic_sampling or keys.online_difficulty_filtering or keys.type == ONLINE or keys.gates
    if rollout.oversampling_factor > 1 and not (leaves_out and rollout.refill):
        reason = "unless actor.dynamic_sampling or curriculum leaves groups out"
        yield Problem("rollout.oversampling_factor", f"{synchronous} {reason}")
