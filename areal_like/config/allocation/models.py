"""The allocation of one experiment, and the models that it trains."""

from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

from areal_like.config.allocation.base import Allocation, ClusterSize
from areal_like.config.allocation.evaluators import evaluator_strategy, has_evaluators, reserved_gpus
from areal_like.config.allocation.grammar import AllocationSyntaxError, parse_mode, parse_server
from areal_like.config.allocation.machine import Machine
from areal_like.config.allocation.resolution import resolve
from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engines
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.sections.train_engine import TrainEngineConfig

BASE_MODEL_KEYS = (
    *("path", "dtype", "attn_impl", "init_from_scratch", "trust_remote_code"),
    *("model_impl", "moe_use_grouped_mm", "debug"),
)
"""Two models with equal values of these keys start from the same weights."""


def allocate(
    config: "BaseExperimentConfig", machine: Machine, trains: bool = True
) -> tuple[Allocation | None, list[Problem]]:
    """The allocation, or its problems. Servers at `rollout.server_addresses` take no devices; servers without trainer
    (not `trains`) take all, as do those of an evaluation without training."""
    if not trains:
        return _servers_alone(config, machine)
    if only_evaluates(config):
        if not starts_servers(config):
            return Allocation(eval_only=True), []
        allocation, problems = _servers_alone(config, machine)
        return (None if allocation is None else replace(allocation, eval_only=True)), problems
    backends = {name: engine.backend for name, engine in trained_models(config)}
    cluster = ClusterSize(config.cluster.n_nodes, config.cluster.n_gpus_per_node, config.cluster.type)
    servers = config.rollout.backend if generates(config) else None
    if servers is not None and not starts_servers(config):
        allocation, problems = resolve(config.allocation_mode, None, backends, cluster, machine)
        if allocation is not None:
            return allocation, problems
    own = config if generates(config) and has_evaluators(config) else None
    reserved = 0 if own is None else reserved_gpus(own, cluster, machine)
    on_cpu = servers_on_cpu(config)
    allocation, problems = resolve(
        config.allocation_mode, servers, backends, cluster, machine, servers_on_cpu=on_cpu, reserved=reserved
    )
    if own is not None and allocation is not None and allocation.rollout is not None:
        allocation = replace(allocation, evaluators=evaluator_strategy(own, allocation.rollout))
    return allocation, problems


def _servers_alone(config: "BaseExperimentConfig", machine: Machine) -> tuple[Allocation | None, list[Problem]]:
    """Ignores the trainer in `allocation_mode`."""
    cluster = ClusterSize(config.cluster.n_nodes, config.cluster.n_gpus_per_node, config.cluster.type)
    mode = config.allocation_mode
    try:
        rollout = parse_mode(mode).rollout
        mode = "auto" if rollout is None else str(rollout)
    except AllocationSyntaxError:
        pass  # `resolve` reports it
    servers = config.rollout.backend if generates(config) else None
    allocation, problems = resolve(mode, servers, {}, cluster, machine, servers_on_cpu=servers_on_cpu(config))
    return (None if allocation is None else replace(allocation, warnings=())), problems


def generates(config: "BaseExperimentConfig") -> TypeGuard[GRPOConfig]:
    """Whether answers are generated (not with random tokens)."""
    return isinstance(config, GRPOConfig) and config.train_dataset.fake is None


def only_evaluates(config: "BaseExperimentConfig") -> TypeGuard[GRPOConfig]:
    """Whether the model is evaluated and not trained: there are no steps, or `allocation_mode` has no trainer."""
    return generates(config) and (config.total_train_steps == 0 or mode_evaluates(config.allocation_mode))


def num_evaluators(config: "BaseExperimentConfig") -> int:
    """Servers for evaluations alone; their indices follow those of the servers of training. None without training."""
    if not generates(config) or only_evaluates(config) or config.evaluator.backend is None:
        return 0
    dims = parse_server(config.evaluator.backend).dims
    return dims.data if dims else 1


def uses_api(config: "BaseExperimentConfig") -> TypeGuard[GRPOConfig]:
    """Whether an OpenAI-compatible service gives the answers: the run has neither servers nor a model."""
    return only_evaluates(config) and config.rollout.server_type == "openai"


def mode_evaluates(mode: str) -> bool:
    """Whether it ends with `+eval` or `+cpu`."""
    try:
        return parse_mode(mode).client is not None
    except AllocationSyntaxError:
        return False


def starts_servers(config: "BaseExperimentConfig") -> bool:
    return generates(config) and not config.rollout.server_addresses and not uses_api(config)


def servers_on_cpu(config: "BaseExperimentConfig") -> bool:
    """Only some engines can be kept off the GPUs."""
    if not isinstance(config, GRPOConfig):
        return False
    kept_off = [keys.name for keys in engines() if keys.device_key and value_of(config, keys.device_key) == "cpu"]
    others = tuple(keys.name for keys in engines() if keys.name not in kept_off)
    named = (config.rollout.backend, config.allocation_mode)
    return bool(kept_off) and not any(text.strip().startswith(others) for text in named)


def gpus_per_node(config: "BaseExperimentConfig", machine: Machine) -> int:
    num_gpus = config.cluster.n_gpus_per_node
    return machine.num_gpus if num_gpus == "auto" else int(num_gpus)


def trained_models(config: "BaseExperimentConfig") -> list[tuple[str, "TrainEngineConfig"]]:
    """The models that the trainer ranks hold, or whose actor is evaluated; none where a service answers."""
    if uses_api(config):
        return []
    if not isinstance(config, GRPOConfig):
        return [("model", config.model)] if hasattr(config, "model") else []
    models: list[tuple[str, TrainEngineConfig]] = [("actor", config.actor)]
    if config.actor.kl_ctl > 0 and not reference_is_base(config):
        models.append(("ref", config.ref))
    if hasattr(config, "critic"):
        models.append(("critic", config.critic))
    return models


def reference_is_base(config: GRPOConfig) -> bool:
    """Whether the reference model is the actor without its adapter."""
    actor, ref = config.actor, config.ref
    return (
        actor.use_lora
        and actor.optimizer is not None
        and all(getattr(actor, n) == getattr(ref, n) for n in BASE_MODEL_KEYS)
    )
