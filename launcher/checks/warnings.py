"""Warnings of a plan; they do not prevent a start."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, servers_on_cpu, starts_servers, trained_models
from areal_like.config.checks.user_code import is_built_in
from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engine_keys
from areal_like.config.experiment import GRPOConfig
from areal_like.config.number_text import count_text
from areal_like.config.problems import Problem, plural
from areal_like.config.sections.reward import reward_model
from launcher.checks.engines import is_external
from launcher.plan.batch import staleness_bound
from launcher.plan.host import HostInfo
from launcher.plan.lengths import longest_sample, resolved_context_length, server_limit
from launcher.plan.memory import LINEAR_LAYERS, unknown_target_modules
from launcher.plan.model_config import known_shape
from launcher.plan.plan import BatchPlan, Memory
from launcher.plan.processes import ServerCommand

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

PPO_GROUP = ("algorithm", "ppo.yaml")
LARGE_MODEL = 50_000_000
HIGH_RATES = {"actor": 5e-5, "critic": 1e-4}
"""Learning rates above which reinforcement learning of all weights of a large model mostly diverges."""


def allocation_warnings(allocation: Allocation) -> Iterable[Problem]:
    return allocation.warnings


def model_warnings(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Models that differ from the actor, and modules of adapters that no model has."""
    for name, engine in trained_models(config):
        if name != "actor" and isinstance(config, GRPOConfig):
            for fact in ("path", "dtype"):
                own, actor = getattr(engine, fact), getattr(config.actor, fact)
                if own != actor:
                    yield Problem(f"{name}.{fact}", f"{own} is not the actor's ({actor})")
        if strange := unknown_target_modules(engine):
            known = ", ".join(LINEAR_LAYERS)
            yield Problem(f"{name}.target_modules", f"{', '.join(strange)} is unknown; known are {known}")


def precision_warnings(
    config: "BaseExperimentConfig", host: HostInfo, allocation: Allocation | None = None
) -> Iterator[Problem]:
    on_gpu = bool(host.gpus) or (allocation is not None and allocation.num_gpus > 0)
    if config.cluster.type == "local" and not on_gpu:
        for name, engine in trained_models(config):
            if engine.dtype != "float32" and not (engine.dtype == "bfloat16" and host.has_bfloat16):
                slow = f"{engine.dtype} is slow on this CPU; {name}.dtype=float32 is faster and more exact"
                yield Problem(f"{name}.dtype", slow)


def learning_rate_warnings(config: "BaseExperimentConfig", memory: Memory) -> Iterator[Problem]:
    """Rates of a tiny model, kept in a file whose actor is another one."""
    if not generates(config):
        return
    sizes = {model.model: model for model in memory.trainer}
    for name, engine in trained_models(config):
        size, most = sizes.get(name), HIGH_RATES.get(name)
        if size is None or most is None or engine.optimizer is None or size.trainable < LARGE_MODEL:
            continue
        if engine.optimizer.lr > most:
            count = count_text(size.trainable)
            reason = f"{engine.optimizer.lr:g} is high for a model of {count} parameters; 1e-6 to 2e-5 are usual"
            yield Problem(f"{name}.optimizer.lr", reason)


def batch_warnings(batch: BatchPlan, allocation: Allocation | None = None) -> Iterator[Problem]:
    """Steps too small for the ranks, and micro-batches too small for an answer."""
    parts = batch.data_parallel_ranks * batch.optimizer_steps_per_step
    if allocation and batch.samples_per_step < parts:
        yield Problem(
            "train_dataset.batch_size",
            f"{plural(batch.samples_per_step, 'sample')} for "
            f"{plural(batch.data_parallel_ranks, 'rank')} x {plural(batch.optimizer_steps_per_step, 'optimizer step')} "
            f"are too few: some ranks would be idle",
        )
    limit, generated = batch.max_tokens_per_micro_batch, batch.max_new_tokens
    if limit and generated and generated > limit:
        yield Problem(
            "actor.mb_spec.max_tokens_per_mb",
            f"{limit} tokens cannot hold an answer of gconfig.max_new_tokens={generated}; such a sample would be an "
            "error",
        )


def critic_warnings(loaded: "Loaded") -> Iterator[Problem]:
    """The group of PPO turns off the baselines that a critic replaces."""
    if not generates(loaded.config):
        return
    set_by = Path(loaded.origin("actor.reward_norm.mean_level").where.partition(":")[0])
    if getattr(loaded.config, "critic", None) is None and set_by.parts[-2:] == PPO_GROUP:
        yield Problem(
            "algorithm",
            "ppo without a critic trains with no baseline, as reinforce does: this is not an experiment "
            "with a critic; use --config ppo.yaml, or experiment=ppo critic=same_as_actor",
        )


def staleness_warnings(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Old samples whose ratio nothing corrects."""
    if not generates(config):
        return
    actor = config.actor
    clips_old = actor.loss == "ppo" or (is_built_in(actor.loss) and actor.recompute_logprob)
    if staleness_bound(config) and clips_old and not actor.use_decoupled_loss:  # any other ratio corrects by itself
        yield Problem(
            "actor.use_decoupled_loss",
            f"off, while samples may be {staleness_bound(config)} weight versions old; true corrects for that",
        )


def group_mean_warnings(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Rewards made negative, by whose mean advantages are divided. Those of the task are known once it runs."""
    if not generates(config) or not config.actor.advantage.mean_norm:
        return
    actor = config.actor
    lowering = {"reward_bias": actor.reward_bias < 0}
    lowering["overlong_reward_penalty"] = actor.overlong_reward_penalty and actor.reward_bias <= 0
    for name in (name for name, lowers in lowering.items() if lowers):
        yield Problem(
            f"actor.{name}",
            "lowers rewards below 0, and actor.advantage.mean_norm (MaxRL) divides by the mean of a group: nothing is "
            "learnt from groups whose mean is not above 0; leave it out, or use algorithm=grpo",
        )


def server_warnings(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> Iterator[Problem]:
    """Contexts that are too short, and servers that share a GPU."""
    if starts_servers(config) and isinstance(config, GRPOConfig) and allocation.rollout:
        yield from _server_lengths(config, allocation.rollout.backend, host)
        key = engine_keys(allocation.rollout.backend).memory_key
        if allocation.shared_device and is_external(allocation.rollout.backend) and value_of(config, key) != "auto":
            yield Problem(key, "the trainer shares this GPU; auto leaves it what it needs")
        model = reward_model(config.reward)
        if model is not None and allocation.num_gpus and not servers_on_cpu(config):
            shares = f"the reward model shares the GPU of server/0; lower {key} to leave it memory"
            yield Problem(f"{model.section}.args.path", shares)


def _server_lengths(config: GRPOConfig, backend: str, host: HostInfo) -> Iterator[Problem]:
    """A context that is shorter than the longest sample, or longer than the model supports."""
    key, context = server_limit(config, backend)
    shape = known_shape(config.actor.path, host)
    answer, positions = config.gconfig.max_new_tokens, shape.max_positions if shape else None
    if positions and context is not None and context > positions and not resolved_context_length(config, backend, host):
        more = f"{context} is more than the {positions} positions of {config.actor.path}; {backend} refuses that"
        yield Problem(key, more)
    longest = longest_sample(config)
    if context is not None and answer < context < longest:
        yield Problem(key, _cut_off(longest, answer, context, "the server holds"))
    if context is None and positions and answer < positions < longest:
        holds = f"{config.actor.path} has positions for"
        yield Problem("gconfig.max_tokens", _cut_off(longest, answer, positions, holds))


def row_length_warnings(config: "BaseExperimentConfig", host: HostInfo) -> Iterator[Problem]:
    """Rows that supervised training reads whole, and that may be longer than the model supports."""
    if isinstance(config, GRPOConfig):
        return
    path = trained_models(config)[0][1].path
    shape = known_shape(path, host)
    for section in ("train_dataset", "valid_dataset"):
        longest = getattr(getattr(config, section), "max_length", None)
        if longest and shape and shape.max_positions and longest > shape.max_positions:
            beyond = f"{path} has {shape.max_positions} positions: longer rows are read beyond what it has learned"
            yield Problem(f"{section}.max_length", f"is {longest}, and {beyond}; {shape.max_positions} leaves them out")


def _cut_off(longest: int, answer: int, limit: int, holds: str) -> str:
    return (
        f"a sample may have {longest} tokens (gconfig.max_tokens), and {holds} {limit}: prompts of more than "
        f"{limit - answer} get shorter answers, those of {limit} or more get none; train_dataset.max_length drops them"
    )


def removed_flags(server_start: ServerCommand) -> Iterator[Problem]:
    for key in server_start.without_effect:
        yield Problem(key, "has no effect: this version of the engine no longer has it")


def engine_notes(server_start: ServerCommand) -> Iterator[Problem]:
    return (Problem(key, reason) for key, reason in server_start.notes)


def requeue_warnings(config: "BaseExperimentConfig") -> Iterator[Problem]:
    if config.cluster.type == "slurm" and config.recover.mode not in ("auto", "resume"):
        mode = config.recover.mode
        yield Problem("recover.mode", f"with {mode} a requeued job starts over; auto resumes it")
