"""Resolves every `auto` for this machine, with the reason. The run's config.yaml holds these values."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, mode_evaluates, only_evaluates, trained_models
from areal_like.config.attention import beyond_kernels, choose_attention
from areal_like.config.experiment import GRPOConfig
from areal_like.config.gradient_reduction import choose_reduction
from areal_like.config.schema import ancestors
from launcher.plan.bench import bench_values
from launcher.plan.engine_values import resolved_engine_values
from launcher.plan.host import HostInfo
from launcher.plan.memory import num_shards
from launcher.plan.model_config import find_model_config
from launcher.plan.plan import Resolved, RunDirectory
from launcher.plan.reward_model import resolved_reward_model

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded
    from areal_like.config.schema import Schema

CORES_PER_EPISODE_WORKER = 4
MAX_EPISODE_WORKERS = 8
CLUSTER_EPISODE_WORKERS = 4
MAX_REWARD_PROCESSES = 4
UNDECIDED = "auto"
"""The value where only a started process can decide."""


def resolve_auto(
    config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo, directory: RunDirectory
) -> dict[str, Resolved]:
    """By key, in the order of the configuration; only keys that are `auto`."""
    resolved: list[Resolved] = []
    if config.resume is not None and directory.state == "continues":
        resolved += _names_of(Path(directory.path), config)
    elif config.trial_name == "auto" and directory.state != "missing":
        resolved.append(Resolved("trial_name", directory.trial, directory.reason))
    if config.cluster.n_gpus_per_node == "auto":
        resolved.append(Resolved("cluster.n_gpus_per_node", host.machine.num_gpus, host.machine.how))
    if allocation:
        resolved += _backends(config, allocation)
        resolved += _attention(config, allocation, host)
        resolved += _gradients(config, allocation)
        if generates(config):
            resolved += _rollout(config, host)
            resolved += resolved_engine_values(config, allocation, host)
    if only_evaluates(config) and config.total_train_steps != 0:
        reason = f"allocation_mode={config.allocation_mode} has no trainer: the model is only evaluated"
        resolved.append(Resolved("total_train_steps", 0, reason))
    resolved += resolved_reward_model(config, host)
    resolved += bench_values(config)
    return {each.key: each for each in resolved}


def resolved_values(loaded: "Loaded", resolved: Iterable[Resolved]) -> dict[str, Any]:
    """The values of a configuration with every `auto` resolved, also in keys that refer to one: the content of the
    run's config.yaml."""
    from areal_like.config.interpolation import ReferenceResolver, references_in

    raw, values = deepcopy(loaded.raw), deepcopy(loaded.values)
    changed = {each.key: each.value for each in resolved}
    for path, value in changed.items():
        _put(raw, path, value, loaded.schema)
        _put(values, path, value, loaded.schema)

    def follows(path: str) -> bool:
        references = references_in(loaded.get_raw(path))
        return any(reference in changed or follows(reference) for reference in references)

    resolver = ReferenceResolver(raw, loaded.schema.names())
    for path in loaded.schema.keys:
        if path not in changed and follows(path):
            _put(values, path, resolver.resolve(path, loaded.get_raw(path)), loaded.schema)
    return values


def _names_of(run: Path, config: "BaseExperimentConfig") -> Iterator[Resolved]:
    """A resumed run keeps its names, whatever file it is resumed with."""
    for key, name in (("experiment_name", run.parent.name), ("trial_name", run.name)):
        if getattr(config, key) != name:
            yield Resolved(key, name, f"resume={config.resume}: the run keeps its names")


def _put(tree: Any, path: str, value: Any, schema: "Schema") -> None:
    """Where a section is null, it gets its defaults."""
    for above in ancestors(path):
        name = above.rpartition(".")[2]
        if isinstance(tree, list):
            tree = tree[int(name)]
            continue
        if tree[name] is None:
            tree[name] = schema.section_defaults(above)
        tree = tree[name]
    tree[path.rpartition(".")[2]] = value


def _backends(config: "BaseExperimentConfig", allocation: Allocation) -> Iterator[Resolved]:
    if config.allocation_mode.strip() in ("", "auto", "heuristic"):
        yield Resolved("allocation_mode", _mode(allocation), "from the backends below")
    elif allocation.eval_only and not mode_evaluates(config.allocation_mode):
        yield Resolved("allocation_mode", _mode(allocation), "nothing is trained: total_train_steps=0")
    sections = {"rollout": getattr(config, "rollout", None)} | dict(trained_models(config))
    for name, section in sections.items():
        parallel = getattr(allocation, "actor" if name == "model" else name)
        key = f"{name}.backend"
        if section is not None and parallel is not None and section.backend != str(parallel):
            yield Resolved(key, str(parallel), allocation.reasons.get(key, "follows from allocation_mode"))


def _mode(allocation: Allocation) -> str:
    parts = [str(part) for part in (allocation.rollout, allocation.actor) if part is not None]
    return "+".join([*parts, "eval"] if allocation.eval_only else parts)


def _attention(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> Iterator[Resolved]:
    for name, engine in trained_models(config):
        if engine.attn_impl == "auto":
            names = [gpu.name for gpu in host.gpus] or ["GPU"]
            beyond = beyond_kernels(find_model_config(engine.path, host)[0], engine.disable_dropout)
            gpus = names if allocation.num_gpus else []
            value, reason = choose_attention(engine.dtype, gpus, host.packages, beyond)
            if not host.is_here and allocation.num_gpus:
                reason = (
                    "torch's own attention, as it is not known whether flash attention is installed on that machine"
                )
            yield Resolved(f"{name}.attn_impl", value, reason)


def _gradients(config: "BaseExperimentConfig", allocation: Allocation) -> Iterator[Resolved]:
    for name, engine in trained_models(config):
        if name != "ref" and engine.fsdp.reduce_gradients == "auto":
            shards = num_shards(engine, getattr(allocation, name, None) or allocation.actor)
            value, reason = choose_reduction(engine, shards, bool(allocation.num_gpus))
            yield Resolved(f"{name}.fsdp.reduce_gradients", value, reason)


def _rollout(config: GRPOConfig, host: HostInfo) -> Iterator[Resolved]:
    if config.rollout.num_episode_workers == "auto":
        yield Resolved("rollout.num_episode_workers", *episode_workers(config, host))
    if config.reward.processes == "auto":
        yield Resolved("reward.processes", *reward_processes(config, host))
    if config.rollout.server_addresses and config.rollout.server_type == "auto":
        reason = "the servers at rollout.server_addresses are queried at the start"
        yield Resolved("rollout.server_type", UNDECIDED, reason)


def episode_workers(config: GRPOConfig, host: HostInfo) -> tuple[int, str]:
    batch = config.rollout.consumer_batch_size
    if config.cluster.type != "local" and host.is_here:
        count = min(CLUSTER_EPISODE_WORKERS, batch)
        processes = "1 process" if count == 1 else f"{count} processes"
        return count, f"{processes}: the number of cores of a {config.cluster.type} node is unknown here"
    cores = host.machine.num_cpu_cores
    count = max(1, min(cores // CORES_PER_EPISODE_WORKER, MAX_EPISODE_WORKERS, batch))
    return count, f"1 per {CORES_PER_EPISODE_WORKER} cores; {cores} here, at most {MAX_EPISODE_WORKERS}"


def reward_processes(config: GRPOConfig, host: HostInfo) -> tuple[int, str]:
    """At least 2 of each worker, so that one slow answer does not delay all others."""
    if config.cluster.type != "local" and host.is_here:
        return MAX_REWARD_PROCESSES, f"the number of cores of a {config.cluster.type} node is unknown here"
    workers = config.rollout.num_episode_workers
    cores = host.machine.num_cpu_cores // (episode_workers(config, host)[0] if workers == "auto" else workers)
    return max(2, min(cores, MAX_REWARD_PROCESSES)), f"1 per core of an episodes worker, 2 to {MAX_REWARD_PROCESSES}"
