"""Resolves every `auto` for this machine, with the reason. The run's config.yaml holds these values."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, starts_servers, trained_models
from areal_like.config.attention import beyond_kernels, choose_attention
from areal_like.config.experiment import GRPOConfig
from areal_like.config.gradient_reduction import choose_reduction
from areal_like.models.model_shape import BYTES
from areal_like.serving.engines.registry import engine_spec
from launcher.checks.engines import resolved_engine
from launcher.plan.bench import bench_values
from launcher.plan.host import HostInfo
from launcher.plan.lengths import resolved_context_length
from launcher.plan.memory import num_shards
from launcher.plan.model_config import find_model_config, known_shape
from launcher.plan.placement import PlacementPlan
from launcher.plan.plan import Resolved, RunDirectory
from launcher.plan.reward_model import resolved_reward_model
from launcher.plan.server_memory import embedded_bytes

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

CORES_PER_EPISODE_WORKER = 4
MAX_EPISODE_WORKERS = 8
CLUSTER_EPISODE_WORKERS = 4
SHARE_OF_MAIN_MEMORY = 0.25
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
            resolved += resolved_engine(config, allocation, host)
            if allocation.rollout and allocation.rollout.backend == "embedded":
                resolved += _embedded(config, allocation, host)
            elif allocation.rollout and starts_servers(config):
                resolved += resolved_context_length(config, allocation.rollout.backend, host)
                autos = engine_spec(allocation.rollout.backend).autos(config, bool(allocation.num_gpus))
                resolved += [Resolved(*value) for value in autos]
    resolved += resolved_reward_model(config, host)
    resolved += bench_values(config)
    return {each.key: each for each in resolved}


def add_server_threads(resolved: dict[str, Resolved], config: "BaseExperimentConfig", placement: PlacementPlan) -> None:
    """Adds `embedded.threads`, which follows from the placement."""
    if generates(config) and config.embedded.threads == "auto" and placement.servers:
        backend = resolved["rollout.backend"].value if "rollout.backend" in resolved else config.rollout.backend
        if str(backend).startswith("embedded"):
            threads = placement.servers[0].threads
            resolved["embedded.threads"] = Resolved("embedded.threads", threads, "its share of the cores")


def resolved_values(loaded: "Loaded", resolved: Iterable[Resolved]) -> dict[str, Any]:
    """The values of a configuration with every `auto` resolved, also in keys that refer to one: the content of the
    run's config.yaml."""
    from areal_like.config.interpolation import ReferenceResolver, references_in

    raw, values = deepcopy(loaded.raw), deepcopy(loaded.values)
    changed = {each.key: each.value for each in resolved}
    for path, value in changed.items():
        _put(raw, path, value)
        _put(values, path, value)

    def follows(path: str) -> bool:
        references = references_in(loaded.get_raw(path))
        return any(reference in changed or follows(reference) for reference in references)

    resolver = ReferenceResolver(raw, loaded.schema.names())
    for path in loaded.schema.keys:
        if path not in changed and follows(path):
            _put(values, path, resolver.resolve(path, loaded.get_raw(path)))
    return values


def _names_of(run: Path, config: "BaseExperimentConfig") -> Iterator[Resolved]:
    """A resumed run keeps its names, whatever file it is resumed with."""
    for key, name in (("experiment_name", run.parent.name), ("trial_name", run.name)):
        if getattr(config, key) != name:
            yield Resolved(key, name, f"resume={config.resume}: the run keeps its names")


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *above, name = path.split(".")
    for step in above:
        tree = tree[step]
    tree[name] = value


def _backends(config: "BaseExperimentConfig", allocation: Allocation) -> Iterator[Resolved]:
    if config.allocation_mode.strip() in ("", "auto", "heuristic"):
        yield Resolved("allocation_mode", _mode(allocation), "from the backends below")
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


def _embedded(config: GRPOConfig, allocation: Allocation, host: HostInfo) -> Iterator[Resolved]:
    embedded = config.embedded
    on_gpu = bool(allocation.num_gpus) and embedded.device != "cpu"
    if embedded.dtype == "auto":
        yield Resolved("embedded.dtype", config.actor.dtype, "same as actor.dtype")
    if embedded.device == "auto":
        reason = "a GPU is assigned" if on_gpu else f"no GPU ({host.machine.how})"
        yield Resolved("embedded.device", "cuda" if on_gpu else "cpu", reason)
    if embedded.enforce_eager == "auto":
        reason = "decode steps are captured as CUDA graphs" if on_gpu else "a CPU has no graphs to capture"
        yield Resolved("embedded.enforce_eager", not on_gpu, reason)
    if embedded.kv_cache_tokens == "auto":
        tokens = _cache_tokens(config, allocation, host, on_gpu)
        if tokens is None:
            reason = "the size of the model or of the device's memory is unknown before the start"
            yield Resolved("embedded.kv_cache_tokens", UNDECIDED, f"decided by the server after loading: {reason}")
        else:
            yield Resolved("embedded.kv_cache_tokens", *tokens)


def _cache_tokens(config: GRPOConfig, allocation: Allocation, host: HostInfo, on_gpu: bool) -> tuple[int, str] | None:
    """Enough for all requests at maximum length, limited by a share of the memory."""
    shape = known_shape(config.actor.path, host)
    memory = (host.gpus[0].memory_bytes if host.gpus else None) if on_gpu else host.memory_bytes
    if shape is None or memory is None or allocation.rollout is None:
        return None
    width = BYTES.get(config.embedded.dtype, BYTES[config.actor.dtype])
    longest = min(config.gconfig.max_tokens, config.embedded.context_length or shape.max_positions or 1 << 30)
    tokens = config.embedded.max_running_requests * longest
    per_token = shape.kv_per_token * width
    if on_gpu:
        taken = embedded_bytes(config, allocation, shape, width, longest)
        per_token = taken.cache_per_token
        share = (0.5 if allocation.shared_device else 0.9) * memory - taken.weights - taken.working
        limit = "half of the GPU's memory" if allocation.shared_device else "nine tenths of the GPU's memory"
        limit += f" beside {taken.text}"
        if share < longest * per_token:
            return longest, f"one sequence, which does not fit into {limit}; lower embedded.max_running_requests"
    else:
        share = SHARE_OF_MAIN_MEMORY * memory / allocation.rollout.data
        limit = "a quarter of main memory" + (" over all servers" if allocation.rollout.data > 1 else "")
    max_tokens = max(longest, int(share) // per_token)
    if tokens <= max_tokens:
        return tokens, f"embedded.max_running_requests={config.embedded.max_running_requests} of {longest} tokens each"
    return max_tokens, f"fits into {limit}"
