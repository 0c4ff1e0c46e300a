"""Assigns node, GPUs and cores to each process: servers first, then the trainer, in the order of the devices."""

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from areal_like.config.allocation import Allocation, ParallelStrategy
from areal_like.config.sections.cluster import LauncherConfig
from launcher.plan.host import Gpu, HostInfo

MAX_THREADS_WITH_GPU = 16


class ProcessPlacement(NamedTuple):
    """Where one process runs. `visible`: its CUDA_VISIBLE_DEVICES; a trainer rank sees the GPUs of all ranks of its
    node and selects one by LOCAL_RANK, as under torchrun. Empty `cores`: not bound to cores."""

    node: int
    gpus: tuple[int, ...]
    visible: tuple[str, ...]
    cores: tuple[int, ...]
    threads: int
    local_rank: int = 0
    local_world_size: int = 1


class PlacementPlan(NamedTuple):
    """The placement of every process except guardian and launcher."""

    servers: tuple[ProcessPlacement, ...]
    trainers: tuple[ProcessPlacement, ...]
    controller: ProcessPlacement
    episodes: tuple[ProcessPlacement, ...]
    reward: ProcessPlacement | None = None
    """Of the reward model's server, if there is one."""

    @property
    def num_nodes(self) -> int:
        return 1 + max(placement.node for placement in (*self.servers, *self.trainers, self.controller))


class PlacementRequest(NamedTuple):
    """What has to be placed: GPUs of each server (0: on the CPU), trainer ranks and whether they need GPUs."""

    server_gpus: tuple[int, ...]
    trainer_ranks: int
    trainer_on_gpu: bool
    episodes: int
    shared_device: bool
    reward_model: bool = False


def placement_request(
    allocation: Allocation,
    starts_servers: bool,
    servers_on_cpu: bool,
    episodes: int,
    reward_model: bool = False,
    evaluators: ParallelStrategy | None = None,
    evaluators_on_cpu: bool = False,
) -> PlacementRequest:
    """`evaluators`: servers for evaluations alone; they come after those of training."""
    on_gpu = allocation.num_gpus > 0
    rollout = allocation.rollout if starts_servers else None
    groups = [(rollout, servers_on_cpu), (evaluators if rollout else None, evaluators_on_cpu)]
    return PlacementRequest(
        server_gpus=tuple(
            each.tensor * each.pipeline if on_gpu and not on_cpu else 0
            for each, on_cpu in groups
            if each is not None
            for _ in range(each.data)
        ),
        trainer_ranks=allocation.actor.world_size if allocation.actor else 0,
        trainer_on_gpu=on_gpu,
        episodes=episodes,
        shared_device=allocation.shared_device,
        reward_model=reward_model,
    )


def place_processes(
    request: PlacementRequest, gpus_per_node: int, host: HostInfo, limits: LauncherConfig, local: bool
) -> PlacementPlan:
    """Places all processes. On other machines cores are requested by number, not by id. A reward model shares the GPU
    of the first server: it is called only after generation."""
    gpu_servers = [size for size in request.server_gpus if size]
    cpu_servers = len(request.server_gpus) - len(gpu_servers)
    cpu_trainers = 0 if request.trainer_on_gpu else request.trainer_ranks
    cpu_rewards = int(request.reward_model and not gpu_servers)
    computing = cpu_servers + cpu_trainers + cpu_rewards
    shares, rest = _share_cores(host.cores, computing, request.episodes + 1 if request.episodes else 0)
    on_gpus = len(gpu_servers) + (request.trainer_ranks if request.trainer_on_gpu else 0)
    beside = _threads(host, min(on_gpus, gpus_per_node)) if local else 0

    known = host.gpus if local else ()
    if not limits.numa_binding:
        known = tuple(gpu._replace(cores=()) for gpu in known)
    taken = _GpuAllocator(gpus_per_node, known)
    per_gpu, cpu_shares = limits.inference_server_cpus_per_gpu, iter(shares[:cpu_servers])
    servers = [
        taken.placement(size, beside or size * per_gpu) if size else _cpu_placement(next(cpu_shares), per_gpu, local)
        for size in request.server_gpus
    ]
    if request.trainer_on_gpu:
        if request.shared_device:
            taken = _GpuAllocator(gpus_per_node, known)
        trainers = taken.ranks(request.trainer_ranks, beside or limits.trainer_cpus_per_gpu)
    else:
        trainers = [
            ProcessPlacement(0, (), (), placement.cores, placement.threads, rank, cpu_trainers)
            for rank, share in enumerate(shares[cpu_servers : cpu_servers + cpu_trainers])
            for placement in [_cpu_placement(share, limits.trainer_cpus_per_gpu, local)]
        ]
    light = ProcessPlacement(0, (), (), rest if local else (), 1)
    reward = None
    if request.reward_model:
        limit = limits.inference_server_cpus_per_gpu
        reward = servers[0] if gpu_servers else _cpu_placement(shares[-1], limit, local)
    return PlacementPlan(tuple(servers), tuple(trainers), light, tuple(repeat(light, request.episodes)), reward)


def _threads(host: HostInfo, processes: int) -> int:
    """A share of the cores per process with a GPU, and one share for all others together."""
    return max(1, min(MAX_THREADS_WITH_GPU, len(host.cores) // (processes + 1)))


def _within(threads: int, cores: tuple[int, ...]) -> int:
    return min(threads, len(cores)) if cores else threads


def _cpu_placement(share: tuple[int, ...], cores_elsewhere: int, local: bool) -> ProcessPlacement:
    return ProcessPlacement(0, (), (), share if local else (), len(share) if local else cores_elsewhere)


def _share_cores(cores: tuple[int, ...], computing: int, light: int) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Neighbouring cores for each computing process, and the cores that all light processes share."""
    if not computing:
        return [], ()
    reserved = min(light, len(cores) // 4)
    pool, rest = cores[: len(cores) - reserved], cores[len(cores) - reserved :]
    if len(pool) < computing:
        return [(pool[index % len(pool)],) for index in range(computing)], rest
    size, larger = divmod(len(pool), computing)
    shares, start = [], 0
    for index in range(computing):
        end = start + size + (index < larger)
        shares.append(pool[start:end])
        start = end
    return shares, rest


class _GpuAllocator:
    """Assigns GPUs in order; the GPUs of one server stay on one node."""

    def __init__(self, per_node: int, known: Sequence[Gpu]) -> None:
        self.per_node, self.known, self.next = max(1, per_node), known, 0

    def placement(self, size: int, threads: int) -> ProcessPlacement:
        used = self.next % self.per_node
        if used and used + size > self.per_node:
            self.next += self.per_node - used
        slots = range(self.next, self.next + size)
        self.next += size
        node, names, cores = slots[0] // self.per_node, self._names(slots), self._cores(slots)
        return ProcessPlacement(node, self._numbers(slots), names, cores, _within(threads, cores))

    def ranks(self, count: int, threads: int) -> list[ProcessPlacement]:
        slots = range(self.next, self.next + count)
        self.next += count
        placements = []
        for slot in slots:
            node = slot // self.per_node
            here = [other for other in slots if other // self.per_node == node]
            rank, size, cores = here.index(slot), len(here), self._cores([slot])
            numbers, names = self._numbers([slot]), self._names(here)
            placements.append(ProcessPlacement(node, numbers, names, cores, _within(threads, cores), rank, size))
        return placements

    def _names(self, slots: Sequence[int]) -> tuple[str, ...]:
        local = [slot % self.per_node for slot in slots]
        return tuple(self.known[slot].id if slot < len(self.known) else str(slot) for slot in local)

    def _cores(self, slots: Sequence[int]) -> tuple[int, ...]:
        """Those near these GPUs; none, for any core, where one of them does not tell."""
        near = [self.known[slot % self.per_node].cores for slot in slots if slot % self.per_node < len(self.known)]
        return tuple(sorted(set().union(*near))) if near and all(near) else ()

    def _numbers(self, slots: Sequence[int]) -> tuple[int, ...]:
        """GPU numbers as the user knows them; list indices where GPUs have other names."""
        named = zip(self._names(slots), slots, strict=True)
        return tuple(int(name) if name.isdigit() else slot % self.per_node for name, slot in named)
