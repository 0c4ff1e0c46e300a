"""Servers for evaluations alone, which `evaluator.backend` adds to those of training."""

from typing import TYPE_CHECKING

from areal_like.config.allocation.auto import devices_of
from areal_like.config.allocation.base import BackendSpec, ClusterSize, ParallelDims, ParallelStrategy
from areal_like.config.allocation.grammar import AllocationSyntaxError, parse_mode, parse_server
from areal_like.config.allocation.machine import Machine
from areal_like.config.dotted_path import value_of
from areal_like.config.engines import default_engine, engine_keys

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig, GRPOConfig

LEAST_FOR_TRAINING = 2
"""GPUs: with fewer, servers and trainer share one or have none."""


def has_evaluators(config: "GRPOConfig") -> bool:
    """Whether the key names any that can be read; what cannot is reported where the configuration is checked."""
    try:
        return config.evaluator.backend is not None and bool(parse_server(config.evaluator.backend))
    except AllocationSyntaxError:
        return False


def evaluator_strategy(config: "GRPOConfig", rollout: ParallelStrategy) -> ParallelStrategy:
    """Engine and sizes: what the key leaves open is that of the servers of training, of which one is taken; those of
    another engine have a device each."""
    written = parse_server(config.evaluator.backend or "auto")
    backend = written.backend or rollout.backend
    is_same = backend == rollout.backend
    one = ParallelDims(tensor=rollout.tensor, pipeline=rollout.pipeline) if is_same else ParallelDims()
    return ParallelStrategy.of(BackendSpec(backend, written.dims or one))


def evaluators_on_cpu(config: "BaseExperimentConfig", evaluators: ParallelStrategy) -> bool:
    key = engine_keys(evaluators.backend).device_key
    return bool(key) and value_of(config, key) == "cpu"


def reserved_gpus(config: "GRPOConfig", cluster: ClusterSize, machine: Machine) -> int:
    """GPUs that sizes which are left to `auto` leave to them; 0 where too few would be left for training."""
    try:
        mode = parse_mode(config.allocation_mode).rollout
        part = mode or parse_server(config.rollout.backend)
        written = parse_server(config.evaluator.backend or "auto")
    except AllocationSyntaxError:  # reported where they are resolved
        return 0
    same = BackendSpec(part.backend or written.backend or default_engine().name, part.dims or ParallelDims())
    evaluators = evaluator_strategy(config, ParallelStrategy.of(same))
    if evaluators_on_cpu(config, evaluators):
        return 0
    left = devices_of(cluster, machine).num_gpus - evaluators.world_size
    return evaluators.world_size if left >= LEAST_FOR_TRAINING else 0
