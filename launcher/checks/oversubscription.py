"""Checks that the cores and the memory of a machine suffice for the processes that compute without a GPU.

A lower bound: an external engine needs a core per worker, an embedded server or a trainer rank half a core. One server
and one trainer run on any number of cores. Memory counts the programs (measured), weights, gradients and optimizer, but
not caches and activations.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import starts_servers, trained_models
from areal_like.config.number_text import GIB, size_text
from areal_like.config.problems import Problem, plural
from areal_like.serving.engines.registry import engine_spec
from launcher.plan.host import HostInfo
from launcher.plan.placement import PlacementPlan
from launcher.plan.plan import Memory

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

KEY = "cluster.allow_oversubscription"
CORES_PER_PROCESS = 0.5
OUR_PROGRAM_BYTES = GIB // 4
AUTO_MODES = ("", "auto", "heuristic", "manual")


class ResourceNeed(NamedTuple):
    """Processes of one kind: their number, and what each one needs."""

    number: int
    what: str
    cores: float
    bytes: int


def capacity_problems(
    config: "BaseExperimentConfig", allocation: Allocation, placement: PlacementPlan, memory: Memory, host: HostInfo
) -> list[Problem]:
    """What exceeds this machine, unless `cluster.allow_oversubscription` is set."""
    if config.cluster.allow_oversubscription or config.cluster.type != "local":
        return []
    return _too_much(config, allocation, placement, memory, host, f"or set {KEY}=true")


def node_capacity_problems(cluster: dict[str, Any], host: HostInfo) -> list[Problem]:
    """Resources that a described cluster node does not have."""
    if host.is_here:
        return []
    if cluster["type"] == "slurm" and "cpus_per_node" in cluster:
        cores, size = cluster["cpus_per_node"], cluster["memory_mb_per_node"] << 20
    elif cluster["type"] == "ray":
        cores = max((bundle["CPU"] for bundle in cluster["bundles"]), default=0)
        size = max((bundle["memory"] for bundle in cluster["bundles"]), default=0)
    else:
        return []
    problems, place, available = [], host.machine.place, host.machine.num_cpu_cores
    if cores > available:
        remedy = "lower it, and launcher.inference_server_cpus_per_gpu"
        reason = f"{cores} cores per node are requested, and {place} has {available}"
        problems.append(Problem("launcher.trainer_cpus_per_gpu", f"{reason}; {remedy}"))
    if host.memory_bytes and size > host.memory_bytes:
        remedy = "lower it, and launcher.inference_server_mem_per_gpu"
        reason = f"{size_text(size)} of memory per node are requested, and {place} has {size_text(host.memory_bytes)}"
        problems.append(Problem("launcher.trainer_mem_per_gpu", f"{reason}; {remedy}"))
    return problems


def capacity_warnings(
    config: "BaseExperimentConfig", allocation: Allocation, placement: PlacementPlan, memory: Memory, host: HostInfo
) -> list[Problem]:
    """The same as warnings, with `cluster.allow_oversubscription`."""
    if not config.cluster.allow_oversubscription or config.cluster.type != "local":
        return []
    return _too_much(config, allocation, placement, memory, host, f"{KEY}=true starts it anyway")


def _too_much(
    config: "BaseExperimentConfig",
    allocation: Allocation,
    placement: PlacementPlan,
    memory: Memory,
    host: HostInfo,
    end: str,
) -> list[Problem]:
    requirements = resource_needs(config, allocation, placement, memory)
    cores, size = (
        sum(need.number * need.cores for need in requirements),
        sum(need.number * need.bytes for need in requirements),
    )
    problems, place = [], host.machine.place
    available = host.machine.num_cpu_cores
    if cores > available and any(need.number > 1 for need in requirements):
        each = ", ".join(f"{need.cores:g} for each {need.what}" for need in requirements)
        reason = f"{_listed(requirements)} need {cores:g} cores ({each}), and {place} has {available}"
        problems.append(Problem(_sizes_key(config, placement), f"{reason}; use smaller sizes, {end}"))
    if host.memory_bytes and size > host.memory_bytes:
        reason = f"{_listed(requirements)} need {size_text(size)} of memory before caches and activations"
        remedy = f"use a smaller model or fewer processes, {end}"
        key = f"{_trained(config)}.path"
        problems.append(Problem(key, f"{reason}, and {place} has {size_text(host.memory_bytes)}; {remedy}"))
    return problems


def resource_needs(
    config: "BaseExperimentConfig", allocation: Allocation, placement: PlacementPlan, memory: Memory
) -> list[ResourceNeed]:
    """What the processes without a GPU need."""
    problems = []
    servers = sum(not process.gpus for process in placement.servers)
    if servers and allocation.rollout is not None and starts_servers(config):
        spec = engine_spec(allocation.rollout.backend)
        model = memory.server.weights if memory.server else 0
        workers = allocation.rollout.tensor * allocation.rollout.pipeline
        cores, size = spec.cores_per_worker * workers, spec.program_bytes + model * workers
        problems.append(ResourceNeed(servers, f"{spec.keys.title} server", cores, size))
    ranks = sum(not process.gpus for process in placement.trainers)
    if ranks:
        problems.append(
            ResourceNeed(ranks, "trainer rank", CORES_PER_PROCESS, OUR_PROGRAM_BYTES + (memory.trainer_rank_bytes or 0))
        )
    if placement.reward is not None and not placement.reward.gpus:
        problems.append(ResourceNeed(1, "reward model server", CORES_PER_PROCESS, OUR_PROGRAM_BYTES))
    return problems


def _listed(requirements: list[ResourceNeed]) -> str:
    return " and ".join(plural(need.number, need.what) for need in requirements)


def _trained(config: "BaseExperimentConfig") -> str:
    return "actor" if hasattr(config, "actor") else trained_models(config)[0][0]


def _sizes_key(config: "BaseExperimentConfig", placement: PlacementPlan) -> str:
    """The key that sets the number of processes."""
    if config.allocation_mode.strip() not in AUTO_MODES:
        return "allocation_mode"
    return "rollout.backend" if len(placement.servers) > 1 else f"{_trained(config)}.backend"
