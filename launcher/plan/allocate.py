"""Asks the allocation what runs where, with the keys of one experiment."""

from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation, Cluster, Finding, Machine, resolve
from areal_like.config.experiment import GRPOConfig
from launcher.plan.memory import trained_models

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def allocate(config: "BaseExperimentConfig", machine: Machine) -> tuple[Allocation | None, list[Finding]]:
    """The allocation, or what is wrong with it. Servers that run already take no devices of ours."""
    backends = {name: engine.backend for name, engine in trained_models(config)}
    cluster = Cluster(config.cluster.n_nodes, config.cluster.n_gpus_per_node, config.cluster.type)
    servers = config.rollout.backend if isinstance(config, GRPOConfig) else None
    if servers is not None and not starts_servers(config):
        allocation, problems = resolve(config.allocation_mode, None, backends, cluster, machine)
        if allocation is not None:
            return allocation, problems
    return resolve(config.allocation_mode, servers, backends, cluster, machine, servers_on_cpu=servers_on_cpu(config))


def starts_servers(config: "BaseExperimentConfig") -> bool:
    return isinstance(config, GRPOConfig) and not config.rollout.server_addresses


def servers_on_cpu(config: "BaseExperimentConfig") -> bool:
    """Only the embedded engine can be told to leave the GPUs alone."""
    if not isinstance(config, GRPOConfig) or config.embedded.device != "cpu":
        return False
    named = (config.rollout.backend, config.allocation_mode)
    return not any(text.strip().startswith(("vllm", "sglang")) for text in named)


def gpus_per_node(config: "BaseExperimentConfig", machine: Machine) -> int:
    asked = config.cluster.n_gpus_per_node
    return machine.num_gpus if asked == "auto" else int(asked)
