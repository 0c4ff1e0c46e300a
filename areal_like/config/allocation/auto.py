"""Defaults of `auto`: engine and sizes from the machine, each with a reason.

No GPU: one server and one trainer on the CPU. One GPU: both share it and its memory. More: half of them for servers,
half for the trainer. Generation is the longer part of a step, so servers get an odd one; on several nodes the halves
are whole nodes, so that collectives of the trainer span as few nodes as possible.
"""

from dataclasses import dataclass, replace

from areal_like.config.allocation.base import BackendSpec, ClusterSize, ParallelDims
from areal_like.config.allocation.machine import THIS_MACHINE, Machine
from areal_like.config.engines import default_engine, gpu_engines
from areal_like.config.problems import plural


@dataclass(frozen=True)
class Devices:
    """GPUs of the whole cluster, and the source of their number."""

    n_nodes: int
    gpus_per_node: int
    source: str
    place: str = THIS_MACHINE
    reserved: int = 0
    """Of servers for evaluations alone."""

    @property
    def num_gpus(self) -> int:
        return self.n_nodes * self.gpus_per_node - self.reserved

    def __str__(self) -> str:
        if not self.num_gpus:
            return f"no GPU on {self.place} ({self.source})"
        apart = f", {self.reserved} of them for evaluations (evaluator.backend)" if self.reserved else ""
        if self.n_nodes > 1:
            return f"{self.n_nodes} nodes with {plural(self.gpus_per_node, 'GPU')} each ({self.source}){apart}"
        return f"{plural(self.num_gpus + self.reserved, 'GPU')} ({self.source}){apart}"


def devices_of(cluster: ClusterSize, machine: Machine) -> Devices:
    if cluster.n_gpus_per_node == "auto":
        return Devices(cluster.n_nodes, machine.num_gpus, machine.how, machine.place)
    return Devices(
        cluster.n_nodes, cluster.n_gpus_per_node, f"cluster.n_gpus_per_node={cluster.n_gpus_per_node}", machine.place
    )


def choose_server(devices: Devices, engines: tuple[str, ...], on_cpu: bool) -> tuple[str, str]:
    """The inference engine if none is named."""
    default = default_engine()
    if on_cpu or not devices.num_gpus:
        return default.name, f"the {default.title} engine runs on a CPU"
    if devices.num_gpus == 1:
        return default.name, f"the {default.title} engine shares one GPU with the trainer"
    wanted = [keys.name for keys in gpu_engines()]
    for name in wanted:
        if name in engines:
            return (
                name,
                f"{name} is installed here" if devices.place == THIS_MACHINE else f"{name} is the first of the engines",
            )
    return default.name, f"neither {' nor '.join(wanted)} is installed here"


def choose_trainer(part: BackendSpec) -> tuple[str, str]:
    """The training engine if none is named; pipeline and expert sizes imply megatron."""
    dims = part.dims
    if dims and (part.ffn or dims.pipeline > 1 or dims.expert > 1):
        return "megatron", f"pipeline and expert sizes ({dims}) mean megatron"
    return "fsdp", "fsdp is the trainer of this framework"


def choose_size(
    role: str, part: BackendSpec, other: BackendSpec | None, devices: Devices, servers_on_cpu: bool
) -> tuple[BackendSpec, str]:
    """`part` with its number of copies. `role` is "rollout" or "actor", `other` the other one if it runs."""
    count, reason = _count(role, other, devices, servers_on_cpu)
    return replace(part, dims=ParallelDims(data=count)), reason


def _count(role: str, other: BackendSpec | None, devices: Devices, servers_on_cpu: bool) -> tuple[int, str]:
    total = devices.num_gpus
    if not total:
        return 1, f"{devices}: one on the CPU"
    if role == "rollout" and servers_on_cpu:
        return 1, f"the servers run on the CPU ({default_engine().device_key}=cpu): one"
    if other is None or servers_on_cpu:
        return total, f"{devices}: all of them"
    if other.dims is None:
        return _half(role, devices)
    taken = other.dims.world_size
    if total == 1 and taken == 1:
        return 1, f"{devices}: one server and the trainer share it, its memory split between them"
    if taken < total:
        return total - taken, f"{devices}: those that {other} does not use"
    return 1, f"{devices}: {other} uses all of them, so the minimum"


def _half(role: str, devices: Devices) -> tuple[int, str]:
    if devices.num_gpus == 1:
        return 1, f"{devices}: one server and the trainer share it, its memory split between them"
    by_node = devices.n_nodes > 1 and not devices.reserved
    unit, count, noun = (devices.gpus_per_node, devices.n_nodes, "node") if by_node else (1, 0, "GPU")
    count = count or devices.num_gpus
    serving = (count + 1) // 2
    odd = "; generation is the longer part of a step, so servers get the odd one" if count % 2 else ""
    split = f"{plural(serving, noun)} for servers, {plural(count - serving, noun)} for the trainer{odd}"
    return (serving if role == "rollout" else count - serving) * unit, f"{devices}: {split}"
