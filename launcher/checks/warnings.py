"""Warnings of a plan; they do not prevent a start."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, servers_on_cpu, starts_servers, trained_models
from areal_like.config.checks.user_code import is_built_in
from areal_like.config.engines import engine_keys
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import plural
from launcher.checks.unread_keys import unread_key_warnings
from launcher.plan.batch import staleness_bound
from launcher.plan.host import HostInfo
from launcher.plan.hub import model_download_warnings
from launcher.plan.lengths import longest_sample, resolved_context_length, server_limit
from launcher.plan.memory import LINEAR_LAYERS, size_text, unknown_target_modules
from launcher.plan.model_shape import find_config, shape_of
from launcher.plan.plan import BatchPlan, Memory
from launcher.plan.ports import COLLECTIVE_MODES
from launcher.plan.processes import ServerCommand
from launcher.plan.reward_model import has_reward_model

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

PPO_GROUP = ("algorithm", "ppo.yaml")


def plan_warnings(
    loaded: "Loaded",
    allocation: Allocation | None,
    batch: BatchPlan,
    memory: Memory,
    starts: list[ServerCommand],
    host: HostInfo,
) -> Iterator[str]:
    """Each begins with its key."""
    config = loaded.config
    if allocation:
        yield from (f"{finding.key}: {finding.message}" for finding in allocation.warnings)
        yield from _room(allocation, memory, config, host)
    yield from _models(config, host)
    yield from _precision(config, allocation, host)
    yield from _batch(batch, allocation)
    yield from unread_key_warnings(loaded, allocation)
    if generates(config):
        yield from _missing_critic(loaded)
        yield from _rollout(config, allocation, host)
        for hint in starts[0].without_effect if starts else ():
            yield f"{hint}: has no effect: this version of the engine no longer has it"
        yield from (f"{key}: {reason}" for key, reason in (starts[0].notes if starts else ()))
    if config.cluster.type == "slurm" and config.recover.mode not in ("auto", "resume"):
        mode = config.recover.mode
        yield f"recover.mode: with {mode} a requeued job starts over; auto resumes it"


def _room(allocation: Allocation, memory: Memory, config: "BaseExperimentConfig", host: HostInfo) -> Iterator[str]:
    rank, server = memory.trainer_rank_bytes, memory.server
    if config.cluster.type != "local" and host.is_here:
        return
    if allocation.num_gpus:
        size = min((gpu.memory_bytes or 1 << 60 for gpu in host.gpus), default=1 << 60)
        has = size_text(size)
        if rank is not None and rank > size:
            yield f"actor.backend: a trainer rank needs {size_text(rank)} before activations, and a GPU has {has}"
        if server is not None and server.weights > size:
            yield f"rollout.backend: a server's weights are {size_text(server.weights)}, and a GPU has {has}"
        away = sum(model.host for model in memory.trainer) * (allocation.actor.world_size if allocation.actor else 0)
        if host.memory_bytes and away > host.memory_bytes:
            has = size_text(host.memory_bytes)
            yield f"actor.path: {size_text(away)} are offloaded to host memory, and {host.machine.place} has {has}"


def _models(config: "BaseExperimentConfig", host: HostInfo) -> Iterator[str]:
    yield from model_download_warnings(config, host)
    for name, engine in trained_models(config):
        if name != "actor" and isinstance(config, GRPOConfig):
            for fact in ("path", "dtype"):
                own, actor = getattr(engine, fact), getattr(config.actor, fact)
                if own != actor:
                    yield f"{name}.{fact}: {own} is not the actor's ({actor})"
        if strange := unknown_target_modules(engine):
            known = ", ".join(LINEAR_LAYERS)
            yield f"{name}.target_modules: {', '.join(strange)} is unknown; known are {known}"


def _precision(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> Iterator[str]:
    on_gpu = bool(host.gpus) or (allocation is not None and allocation.num_gpus > 0)
    if config.cluster.type == "local" and not on_gpu:
        for name, engine in trained_models(config):
            if engine.dtype != "float32":
                yield f"{name}.dtype: {engine.dtype} is slow on a CPU; {name}.dtype=float32 is faster and more exact"


def _batch(batch: BatchPlan, allocation: Allocation | None) -> Iterator[str]:
    parts = batch.data_parallel_ranks * batch.optimizer_steps_per_step
    if allocation and batch.samples_per_step < parts:
        yield (
            f"train_dataset.batch_size: {plural(batch.samples_per_step, 'sample')} for "
            f"{plural(batch.data_parallel_ranks, 'rank')} x {plural(batch.optimizer_steps_per_step, 'optimizer step')} "
            f"are too few: some ranks would be idle"
        )
    limit, generated = batch.max_tokens_per_micro_batch, batch.max_new_tokens
    if limit and generated and generated > limit:
        yield (
            f"actor.mb_spec.max_tokens_per_mb: {limit} tokens cannot hold an answer of "
            f"gconfig.max_new_tokens={generated}; such a sample would be an error"
        )


def _missing_critic(loaded: "Loaded") -> Iterator[str]:
    """The group of PPO turns off the baselines that a critic replaces."""
    set_by = Path(loaded.origin("actor.reward_norm.mean_level").where.partition(":")[0])
    if getattr(loaded.config, "critic", None) is None and set_by.parts[-2:] == PPO_GROUP:
        yield (
            "algorithm: ppo without a critic trains with no baseline, as reinforce does: this is not an experiment "
            "with a critic; use --config ppo.yaml, or experiment=ppo critic=same_as_actor"
        )


def _rollout(config: GRPOConfig, allocation: Allocation | None, host: HostInfo) -> Iterator[str]:
    actor = config.actor
    clips_old = actor.loss == "ppo" or (is_built_in(actor.loss) and actor.recompute_logprob)
    if staleness_bound(config) and clips_old and not actor.use_decoupled_loss:  # any other ratio corrects by itself
        yield (
            f"actor.use_decoupled_loss: off, while samples may be {staleness_bound(config)} weight versions old; "
            f"true corrects for that"
        )
    if not config.async_training and config.rollout.max_head_offpolicyness:
        yield "rollout.max_head_offpolicyness: has no effect while async_training is false"
    if starts_servers(config) and allocation and allocation.rollout:
        yield from _server_lengths(config, allocation.rollout.backend, host)
        key = engine_keys(allocation.rollout.backend).memory_key
        if allocation.shared_device and allocation.rollout.backend != "embedded":
            yield f"{key}: the trainer shares this GPU; 0.4 leaves it memory"
        if allocation.num_gpus and allocation.rollout.backend != "embedded":
            yield from _weight_transport(config)
        if has_reward_model(config) and allocation.num_gpus and not servers_on_cpu(config):
            yield f"reward.args.path: the reward model shares the GPU of server/0; lower {key} to leave it memory"


def _weight_transport(config: GRPOConfig) -> Iterator[str]:
    if config.actor.weight_update_mode in COLLECTIVE_MODES:
        mode, backend = config.actor.weight_update_mode, str(config.rollout.backend).partition(":")[0]
        yield (
            f"actor.weight_update_mode: {mode} uses gloo over host memory, because {backend} manages its GPUs "
            "itself; NCCL needs embedded servers on separate GPUs"
        )


def _server_lengths(config: GRPOConfig, backend: str, host: HostInfo) -> Iterator[str]:
    """A context that is shorter than the longest sample, or longer than the model supports."""
    key, context = server_limit(config, backend)
    shape = shape_of(find_config(config.actor.path, host)[0])
    answer, positions = config.gconfig.max_new_tokens, shape.max_positions if shape else None
    if positions and context is not None and context > positions and not resolved_context_length(config, backend, host):
        yield f"{key}: {context} is more than the {positions} positions of {config.actor.path}; {backend} refuses that"
    longest = longest_sample(config)
    if context is not None and answer < context < longest:
        yield f"{key}: {_cut_off(longest, answer, context, 'the server holds')}"
    if context is None and positions and answer < positions < longest:
        yield f"gconfig.max_tokens: {_cut_off(longest, answer, positions, f'{config.actor.path} has positions for')}"


def _cut_off(longest: int, answer: int, limit: int, holds: str) -> str:
    return (
        f"a sample may have {longest} tokens (gconfig.max_tokens), and {holds} {limit}: prompts of more than "
        f"{limit - answer} get shorter answers, those of {limit} or more get none; train_dataset.max_length drops them"
    )
