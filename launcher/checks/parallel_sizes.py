"""Checks parallel sizes: tensor size against attention heads, replicas against data-parallel size."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation, ParallelStrategy
from areal_like.config.allocation.models import gpus_per_node, starts_servers, trained_models
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem, plural
from launcher.plan.host import HostInfo
from launcher.plan.model_config import known_shape

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

OVER_NODES = "a server cannot span nodes"


def parallel_size_problems(config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo) -> Iterator[Problem]:
    """Servers first, then the trainer. Engines that follow the actor are reported once, for the actor."""
    rollout = allocation.rollout if starts_servers(config) else None
    if rollout is not None and isinstance(config, GRPOConfig):
        key = _key(config, "rollout", config.rollout.backend)
        per_node, one = gpus_per_node(config, host.machine), rollout.tensor * rollout.pipeline
        if allocation.num_gpus and 0 < per_node < one:
            reason = f"one server of {rollout} takes {plural(one, 'GPU')} and a node has {per_node}; {OVER_NODES}. "
            yield Problem(key, f"{reason}Choose t (times p) of at most {per_node}")
        yield from _heads(key, rollout, config.actor.path, host)
    if allocation.evaluators is not None and isinstance(config, GRPOConfig):
        yield from _heads("evaluator.backend", allocation.evaluators, config.actor.path, host)
    seen = set()
    for name, engine in trained_models(config):
        parallel = getattr(allocation, name, None) or allocation.actor
        if parallel is None:
            continue
        key, replicas = f"{name}.fsdp.dp_replicate", engine.fsdp.dp_replicate
        if parallel.data % replicas and ("replicas", parallel.data, replicas) not in seen:
            yield Problem(key, f"{replicas} does not divide the data-parallel size {parallel.data} of {parallel}")
        if ("heads", parallel.tensor, engine.path) not in seen:
            yield from _heads(_key(config, name, engine.backend), parallel, engine.path, host)
        seen |= {("replicas", parallel.data, replicas), ("heads", parallel.tensor, engine.path)}


def _key(config: "BaseExperimentConfig", name: str, backend: str) -> str:
    """The key that sets the sizes."""
    in_mode = ":" not in backend and config.allocation_mode.strip() not in ("", "auto", "heuristic", "manual")
    return "allocation_mode" if in_mode else f"{name}.backend"


def _heads(key: str, parallel: ParallelStrategy, path: str, host: HostInfo) -> Iterator[Problem]:
    """Each rank takes whole attention heads; a KV head may be shared by several ranks."""
    size = parallel.tensor
    shape = known_shape(path, host) if size > 1 else None
    if shape is None:
        return
    if shape.heads % size:
        yield Problem(key, f"the tensor size {size} of {parallel} does not divide the {shape.heads} heads of {path}")
    elif shape.kv_heads % size and size % shape.kv_heads:
        kv = plural(shape.kv_heads, "KV head")
        yield Problem(key, f"the tensor size {size} of {parallel} neither divides the {kv} of {path} nor is a multiple")
