"""Keys that are there and checked, and that nothing honours yet.

A value that asks for nothing, as every default does, goes through. Any other is refused before anything is started, by
its key and with what to take instead, all of them at once; what only makes no run faster or slower is told and let
through. Rules look at the configuration alone, and at what runs where, as far as that is known.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.config.allocation.base import Allocation, ParallelStrategy
from areal_like.config.allocation.grammar import parse_trainer
from areal_like.config.allocation.models import generates, starts_servers, trained_models
from areal_like.config.checks import sampling
from areal_like.config.checks.user_code import is_built_in
from areal_like.config.experiment import GRPOConfig, RWConfig, SFTConfig
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.config.sections.trackers import TRACKERS, is_enabled

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

NOT_YET = "is not built yet"

KeyProblem = tuple[str, str]
"""A key, and why a start with its value is refused."""


class KeyRule(NamedTuple):
    """`asks` is given a value that is not null; `{}` in the message stands for that value."""

    key: str
    asks: Callable[[Any], bool]
    message: str


def is_true(value: Any) -> bool:
    return bool(value)


def is_false(value: Any) -> bool:
    return not value


def other_than(*built: Any) -> Callable[[Any], bool]:
    return lambda value: value not in built


RUN_RULES = (
    KeyRule(
        "cluster.type", other_than("local"), f"starting processes by {{}} {NOT_YET}; take local, this machine alone"
    ),
    KeyRule("cluster.name_resolve.type", other_than("nfs", "memory"), f"{{}} {NOT_YET}; take nfs"),
    KeyRule("rollout.mask_env_responses", is_false, f"training on what an environment wrote {NOT_YET}; set it to true"),
    KeyRule("rollout.trajectory_strategy", other_than("interleaved"), f"{{}} {NOT_YET}; take interleaved"),
    KeyRule(
        "environments.train",
        is_true,
        f"training on environments {NOT_YET}; take a task (task.name) or train_dataset.path",
    ),
    KeyRule("actor.log_agent_stats", is_true, f"{NOT_YET}; set it to false"),
    KeyRule(
        "recover.skip_curriculum", is_true, f"a curriculum {NOT_YET}, so that there is none to forget; set it to false"
    ),
    KeyRule("log.data", is_true, f"logging the text of samples {NOT_YET}; set it to false"),
)
"""Rules whose keys begin at the root. Where a section on the way is null or not there, nothing is asked for."""

SUPERVISED_RULES = (
    KeyRule(
        "evaluator.n_samples", other_than(1), "supervised training evaluates a loss and samples no answers; set it to 1"
    ),
)

NO_ORDER = "random tokens are neither better nor worse; set it to null (sft.yaml measures the same trainer)"
REWARD_MODEL_RULES = (
    KeyRule("train_dataset.fake", is_true, NO_ORDER),
    KeyRule("valid_dataset.fake", is_true, NO_ORDER),
    KeyRule(
        "enable_token_export", is_true, "answers are scored as a whole, and no token is predicted; set it to false"
    ),
)
"""Of a reward model."""

MODEL_RULES = (KeyRule("model_impl", other_than("hf"), f"{{}} {NOT_YET}; take hf"),)
"""Of each model that a trainer holds; keys begin at its section."""

LOSS_SCALING_KEYS = ("initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis")
LORA_KEYS = ("lora_rank", "lora_alpha", "target_modules", "lora_dropout", "lora_modules_to_save")
NOT_BUILT_SECTIONS = {
    "environments.mix": "training on environments",
    "curriculum": "a curriculum",
    "evaluator.benchmarks": "evaluation on environments",
    "log.environment_level": "training on environments",
}
"""Section or key of which nothing is read -> what it would be for. Every value that differs from its default counts."""


def refuse_not_built(config: "BaseExperimentConfig") -> None:
    """Raises ConfigError with all of them, and with sampling that the trainer, who asks, cannot reproduce."""
    found = not_built_problems(config)
    if generates(config) and not config.rollout.allow_mismatched_sampling:
        found += sampling.mismatch_problems(config.gconfig)
    if found:
        raise ConfigError([Problem(key, message) for key, message in found])


def not_built_problems(config: "BaseExperimentConfig", allocation: Allocation | None = None) -> list[KeyProblem]:
    """In the order of importance. Without an allocation the backends speak for themselves."""
    found: list[KeyProblem] = []
    found += _broken_rules(config, "", RUN_RULES)
    found += _backends(config, allocation)
    for section, what in NOT_BUILT_SECTIONS.items():
        found += [(key, f"{what} {NOT_YET}; leave it out") for key in _changed(config, section)]
    found += _models(config)
    if generates(config):
        found += _groups(config)
    if isinstance(config, SFTConfig | RWConfig):
        found += _broken_rules(config, "", SUPERVISED_RULES)
    if isinstance(config, RWConfig):
        found += _broken_rules(config, "", REWARD_MODEL_RULES)
    return found


def no_effect_problems(config: "BaseExperimentConfig") -> Iterator[KeyProblem]:
    """What changes nothing of what is learnt: it is told, and stops nothing."""
    for name in ("train_dataset", "valid_dataset"):
        data = getattr(config, name)
        if data is not None and data.num_workers:
            yield f"{name}.num_workers", "has no effect: all rows are read once, before the first step"
        if data is not None and data.pin_memory:
            yield f"{name}.pin_memory", "has no effect: batches go from ordinary memory to where they are trained on"
        if data is not None and data.loss_on != "answers" and not isinstance(config, SFTConfig):
            yield f"{name}.loss_on", "has no effect: only supervised training on given answers has a choice"
    yield from _task_without_effect(config)
    if config.cluster.cluster_name != "local":
        yield "cluster.cluster_name", "has no effect on the run: the plan shows it, for people"
    yield from _trackers_without_effect(config)
    clocks = [name for name in ("freq_steps", "freq_epochs", "freq_secs") if getattr(config.evaluator, name)]
    if config.train_dataset.fake is not None and config.valid_dataset is not None and config.valid_dataset.fake is None:
        yield "valid_dataset", "has no effect beside train_dataset.fake, which takes the place of all data"
    elif config.valid_dataset is None and clocks:
        yield f"evaluator.{clocks[0]}", "has no effect: valid_dataset is null, so that there is nothing to evaluate on"
    for name, engine in trained_models(config):
        again = engine.activation_checkpointing
        if again is not None and again.freq != 1 and not engine.gradient_checkpointing:
            yield f"{name}.activation_checkpointing", f"has no effect: {name}.gradient_checkpointing is false"
        for key in (key for each in LORA_KEYS for key in _changed(config, f"{name}.{each}")):
            if not engine.use_lora:
                yield key, f"has no effect: {name}.use_lora is false"
        changed = [key for each in LOSS_SCALING_KEYS for key in _changed(config, f"{name}.optimizer.{each}")]
        if changed and "float16" not in (engine.dtype, engine.grad_reduce_dtype):
            yield changed[0], f"has no effect: losses are scaled for float16 alone ({name}.dtype)"
    if isinstance(config, SFTConfig | RWConfig):
        for key in _changed(config, "evaluator.max_failed_share"):
            yield key, "has no effect: supervised training evaluates a loss, which every row has"
    if config.evaluator.pin and not (isinstance(config, GRPOConfig) and is_asynchronous(config)):
        yield "evaluator.pin", "has no effect: here every evaluation is of one version of the weights anyway"
    if generates(config):
        yield from _rollout_without_effect(config)
        yield from _loss_without_effect(config.actor)
        yield from _actor_without_effect(config)


def _trackers_without_effect(config: "BaseExperimentConfig") -> Iterator[KeyProblem]:
    """Of samples and distributions where there are none, or nobody who gets them."""
    for name in TRACKERS:
        section = f"stats_logger.{name}"
        for key in _changed(config, f"{section}.log_extras"):
            if not is_enabled(name, config.stats_logger):
                yield key, f"has no effect: this tracker is off ({section})"
            elif not generates(config):
                yield key, "has no effect: supervised training samples no answers"


def _task_without_effect(config: "BaseExperimentConfig") -> Iterator[KeyProblem]:
    """Of a task beside rows that are not its own."""
    if not isinstance(config, GRPOConfig | SFTConfig | RWConfig) or config.train_dataset.fake is not None:
        return
    name, path, valid = config.task.name, config.train_dataset.path, config.valid_dataset
    if name is None or path in ("", name):
        return
    brings = ["rewards"] if isinstance(config, GRPOConfig) and config.reward.name is None else []
    brings += ["the rows of valid_dataset"] if valid and valid.fake is None and valid.path in ("", name) else []
    only = f"only brings {' and '.join(brings)}" if brings else "has no effect"
    yield "task.name", f"{only}: rows to train on are those of {path} (train_dataset.path)"


def _loss_without_effect(actor: PPOActorConfig) -> Iterator[KeyProblem]:
    """Keys of a loss that is not the one that is taken."""
    clips, weights = ("eps_clip_higher", "c_clip"), ("behav_imp_weight_cap", "behav_imp_weight_floor")
    unread: dict[str, tuple[str, ...]] = {}
    if actor.loss != "ppo":
        unread[f"actor.loss is {actor.loss}"] = clips if is_built_in(actor.loss) else (*clips, *weights)
    if is_built_in(actor.loss) and not actor.use_decoupled_loss:
        unread["actor.use_decoupled_loss is false"] = weights
    for why, names in unread.items():
        for name in names:
            if getattr(actor, name) is not None:
                yield f"actor.{name}", f"has no effect: {why}"
    if actor.behav_imp_weight_mode != "mask" and all(getattr(actor, name) is None for name in weights):
        yield "actor.behav_imp_weight_mode", "has no effect: neither behav_imp_weight_cap nor _floor is set"
    if actor.kl_in != "reward" and not actor.kl_ctl:
        yield "actor.kl_in", "has no effect: actor.kl_ctl is 0, so that there is no penalty"


def _actor_without_effect(config: GRPOConfig) -> Iterator[KeyProblem]:
    """Keys that change from their default what another key leaves out."""
    actor = config.actor
    unread = {
        "actor.use_decoupled_loss is false": ("behav_imp_weight_level",) if not actor.use_decoupled_loss else (),
        "actor.ratio.level is token": ("ratio.length_norm",) if actor.ratio.level == "token" else (),
        "actor.kl_ctl is 0, so that there is no penalty": ("kl_estimator",) if not actor.kl_ctl else (),
        "actor.overlong_reward_penalty is false": (
            () if actor.overlong_reward_penalty else ("overlong_tokens", "overlong_penalty_factor")
        ),
    }
    if not is_built_in(actor.loss):
        own = f"actor.loss is {actor.loss}"
        unread = {**unread, "actor.ratio.level is token": (), own: ("behav_imp_weight_level", "ratio")}
    told = set()
    for why, names in unread.items():
        for key in (key for name in names for key in _changed(config, f"actor.{name}")):
            if key not in told:
                yield key, f"has no effect: {why}"
            told.add(key)


def is_asynchronous(config: GRPOConfig) -> bool:
    return config.async_training and config.rollout.max_head_offpolicyness > 0


def _rollout_without_effect(config: GRPOConfig) -> Iterator[KeyProblem]:
    rollout, valid = config.rollout, config.valid_dataset
    if valid is not None and valid.batch_size != config.train_dataset.batch_size:
        yield "valid_dataset.batch_size", "has no effect: as many rows are evaluated at once as servers have room for"
    if valid is not None and not valid.shuffle:
        yield "valid_dataset.shuffle", "has no effect: the same rows are evaluated each time, and count all alike"
    if is_asynchronous(config):
        return
    synchronous = "has no effect in synchronous mode"
    if rollout.schedule_policy != "round_robin":
        yield "rollout.schedule_policy", f"{synchronous}: groups go to servers by their number"
    if rollout.oversampling_factor > 1 and not (config.actor.dynamic_sampling and rollout.refill):
        yield "rollout.oversampling_factor", f"{synchronous} unless actor.dynamic_sampling leaves groups out"


def _backends(config: "BaseExperimentConfig", allocation: Allocation | None) -> Iterator[KeyProblem]:
    """What is not built of servers, and of trainers that split a model."""
    if isinstance(config, GRPOConfig) and config.rollout.server_addresses and config.rollout.server_type == "openai":
        message = "an openai service can be given no weights, so that it would answer by others than those in training"
        hint = "take servers of ours (python -m launcher --config FILE serve), vLLM or SGLang"
        yield "rollout.server_type", f"{message}; {hint}"
    seen = set()
    for name, engine in trained_models(config):
        parallel = getattr(allocation, "actor" if name == "model" else name, None)
        if parallel is None and engine.backend not in ("", "auto"):
            parallel = ParallelStrategy.of(parse_trainer(engine.backend))
        if allocation is not None and parallel is not None and parallel.backend != "fsdp":
            continue  # what to take in place of another backend is said with the allocation
        if parallel is not None and parallel.world_size != parallel.data and str(parallel) not in seen:
            seen.add(str(parallel))
            message = f"{parallel} splits a model in other ways than data parallel, which {NOT_YET}"
            yield f"{name}.backend", f"{message}; take fsdp:d{parallel.world_size}"


def _models(config: "BaseExperimentConfig") -> Iterator[KeyProblem]:
    """What a frozen or second model has from the actor is said of the actor alone."""
    first: set[tuple[str, str]] = set()
    for name, engine in trained_models(config):
        for key, message in _broken_rules(engine, name, MODEL_RULES):
            same = (key.removeprefix(f"{name}."), message)
            if same not in first:
                yield key, message
            first.add(same)
        if name == "actor" and starts_servers(config) and engine.debug is not None and engine.debug.num_layers:
            hint = "take sft.yaml with model.debug.num_layers to make such a model, and then that as actor.path"
            yield "actor.debug.num_layers", f"serving the first layers of a model alone {NOT_YET}; {hint}"


def _groups(config: GRPOConfig) -> Iterator[KeyProblem]:
    """A group is a prompt with its answers, and rewards are measured against it once."""
    actor, n_samples = config.actor, config.gconfig.n_samples
    sizes = {"actor.group_size": actor.group_size}
    for name in ("reward_norm", "adv_norm"):
        norm = getattr(actor, name)
        if norm is not None:
            sizes[f"actor.{name}.group_size"] = norm.group_size
    for key, size in sizes.items():
        if size != n_samples:
            message = (
                f"is {size}, but a group is a prompt with all its answers (gconfig.n_samples={n_samples}), however many"
            )
            yield key, f"{message} a workflow of your own makes of it; leave it out"
    centres = actor.reward_norm is not None and actor.reward_norm.mean_level is not None
    if centres and any(dataclasses.asdict(actor.advantage).values()):
        yield "actor.advantage", "measures rewards against their group, and so does actor.reward_norm; use one of them"


def _broken_rules(root: Any, prefix: str, rules: tuple[KeyRule, ...]) -> Iterator[KeyProblem]:
    """Of the rules those that a value breaks."""
    for rule in rules:
        value = _at(root, rule.key)
        if value is not None and rule.asks(value):
            yield f"{prefix}.{rule.key}".removeprefix("."), rule.message.format(value)


def _changed(config: Any, path: str) -> Iterator[str]:
    """The keys at or below a path that differ from their default, or from what that refers to."""
    *above, name = path.split(".")
    owner = _at(config, ".".join(above)) if above else config
    if owner is None or not hasattr(owner, name):
        return
    value = getattr(owner, name)
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _changed(config, f"{path}.{field.name}")
        return
    field = next(field for field in dataclasses.fields(owner) if field.name == name)
    default = field.default
    if default is dataclasses.MISSING:
        assert field.default_factory is not dataclasses.MISSING
        default = field.default_factory()
    if isinstance(default, str) and default.startswith("${"):
        default = _at(config, default[2:-1])
    if value != default:
        yield path


def _at(root: Any, path: str) -> Any:
    """What stands at a dotted path; None where a section on the way is null or not there."""
    for name in path.split("."):
        root = getattr(root, name, None)
    return root
