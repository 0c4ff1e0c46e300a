"""Whether the cores and the memory of a machine carry the processes that compute without a GPU.

The arithmetic is of what no run does without: an engine's server wants a core for each of its workers, and half of one
is enough for a server or a trainer rank of ours. One server and one trainer run on any number of cores. Memory is that
of the programs as they were measured, and of weights, gradients and optimizer; caches and activations come on top.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import starts_servers, trained_models
from areal_like.serving.installations import TITLES
from launcher.plan.host import HostInfo
from launcher.plan.memory import GIB, size_text
from launcher.plan.placement import PlacementPlan
from launcher.plan.plan import Memory, PlanProblem
from launcher.plan.plural import plural

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

KEY = "cluster.allow_oversubscription"
CORES_PER_ENGINE_WORKER, CORES_PER_PROCESS = 1.0, 0.5
PROGRAM_BYTES = {"vllm": 3 * GIB // 4, "sglang": GIB}
"""An engine's processes before they have loaded a model."""
OUR_PROGRAM_BYTES = GIB // 4
AUTO_MODES = ("", "auto", "heuristic", "manual")


class ResourceNeed(NamedTuple):
    """Processes of one kind: how many, and what each of them wants."""

    number: int
    what: str
    cores: float
    bytes: int


def capacity_problems(
    config: "BaseExperimentConfig",
    allocation: Allocation | None,
    placement: PlacementPlan | None,
    memory: Memory,
    host: HostInfo,
) -> list[PlanProblem]:
    """What is too much for this machine, unless somebody insists."""
    if config.cluster.allow_oversubscription or config.cluster.type != "local":
        return []
    return _too_much(config, allocation, placement, memory, host, f"or insist with {KEY}=true")


def node_capacity_problems(cluster: dict[str, Any], host: HostInfo) -> list[PlanProblem]:
    """What is asked of each node of a cluster whose nodes are described."""
    if host.is_here:
        return []
    if cluster["type"] == "slurm" and "cpus_per_node" in cluster:
        cores, size = cluster["cpus_per_node"], cluster["memory_mb_per_node"] << 20
    elif cluster["type"] == "ray":
        cores = max((bundle["CPU"] for bundle in cluster["bundles"]), default=0)
        size = max((bundle["memory"] for bundle in cluster["bundles"]), default=0)
    else:
        return []
    found, place, there = [], host.machine.place, host.machine.num_cpu_cores
    if cores > there:
        ways = "lower it, and launcher.inference_server_cpus_per_gpu"
        reason = f"{cores} cores of a node are asked for, and {place} has {there}"
        found.append(PlanProblem("launcher.trainer_cpus_per_gpu", f"{reason}; {ways}"))
    if host.memory_bytes and size > host.memory_bytes:
        ways = "lower it, and launcher.inference_server_mem_per_gpu"
        reason = f"{size_text(size)} of a node's memory are asked for, and {place} has {size_text(host.memory_bytes)}"
        found.append(PlanProblem("launcher.trainer_mem_per_gpu", f"{reason}; {ways}"))
    return found


def capacity_warnings(
    config: "BaseExperimentConfig",
    allocation: Allocation | None,
    placement: PlacementPlan | None,
    memory: Memory,
    host: HostInfo,
) -> list[str]:
    """The same where somebody does."""
    if not config.cluster.allow_oversubscription or config.cluster.type != "local":
        return []
    lacking = _too_much(config, allocation, placement, memory, host, f"{KEY}=true starts it all the same")
    return [f"{need.key}: {need.reason}" for need in lacking]


def _too_much(
    config: "BaseExperimentConfig",
    allocation: Allocation | None,
    placement: PlacementPlan | None,
    memory: Memory,
    host: HostInfo,
    end: str,
) -> list[PlanProblem]:
    if allocation is None or placement is None:
        return []
    wanted = resource_needs(config, allocation, placement, memory)
    cores, size = sum(need.number * need.cores for need in wanted), sum(need.number * need.bytes for need in wanted)
    found, place = [], host.machine.place
    there = host.machine.num_cpu_cores
    if cores > there and any(need.number > 1 for need in wanted):
        each = ", ".join(f"{need.cores:g} for each {need.what}" for need in wanted)
        reason = f"{_listed(wanted)} want {cores:g} cores ({each}), and {place} has {there}"
        found.append(PlanProblem(_sizes_key(config, placement), f"{reason}; take smaller sizes, {end}"))
    if host.memory_bytes and size > host.memory_bytes:
        reason = f"{_listed(wanted)} need {size_text(size)} of memory before caches and activations"
        ways = f"take a smaller model or fewer processes, {end}"
        key = f"{_trained(config)}.path"
        found.append(PlanProblem(key, f"{reason}, and {place} has {size_text(host.memory_bytes)}; {ways}"))
    return found


def resource_needs(
    config: "BaseExperimentConfig", allocation: Allocation, placement: PlacementPlan, memory: Memory
) -> list[ResourceNeed]:
    """Of the processes that compute, those that have no GPU."""
    found = []
    servers = sum(not seat.gpus for seat in placement.servers)
    if servers and allocation.rollout is not None and starts_servers(config):
        backend = allocation.rollout.backend
        model = memory.server.weights if memory.server else 0
        workers = allocation.rollout.tensor * allocation.rollout.pipeline
        cores = CORES_PER_ENGINE_WORKER * workers if backend in PROGRAM_BYTES else CORES_PER_PROCESS
        program = PROGRAM_BYTES.get(backend, OUR_PROGRAM_BYTES)
        found.append(ResourceNeed(servers, f"{TITLES.get(backend, backend)} server", cores, program + model * workers))
    ranks = sum(not seat.gpus for seat in placement.trainers)
    if ranks:
        found.append(
            ResourceNeed(ranks, "trainer rank", CORES_PER_PROCESS, OUR_PROGRAM_BYTES + (memory.trainer_rank_bytes or 0))
        )
    if placement.reward is not None and not placement.reward.gpus:
        found.append(ResourceNeed(1, "reward model server", CORES_PER_PROCESS, OUR_PROGRAM_BYTES))
    return found


def _listed(wanted: list[ResourceNeed]) -> str:
    return " and ".join(plural(need.number, need.what) for need in wanted)


def _trained(config: "BaseExperimentConfig") -> str:
    return "actor" if hasattr(config, "actor") else trained_models(config)[0][0]


def _sizes_key(config: "BaseExperimentConfig", placement: PlacementPlan) -> str:
    """The key that says how many."""
    if config.allocation_mode.strip() not in AUTO_MODES:
        return "allocation_mode"
    return "rollout.backend" if len(placement.servers) > 1 else f"{_trained(config)}.backend"
