"""Whether an allocation fits the cluster and this machine. Missing devices stop a start, not a plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from areal_like.config.allocation.auto import Devices, devices_of
from areal_like.config.allocation.base import Allocation, ClusterSize
from areal_like.config.allocation.machine import Machine
from areal_like.config.problems import Problem, plural

GPUS_KEY = "cluster.n_gpus_per_node"


def check_capacity(
    allocation: Allocation,
    cluster: ClusterSize,
    machine: Machine,
    keys: Mapping[str, str],
    servers_on_cpu: bool,
    fixed_keys: Sequence[str] = (),
) -> Allocation:
    """`allocation` with its number of GPUs, the missing ones, and warnings. `fixed_keys`: keys that set sizes."""
    devices = devices_of(cluster, machine)
    rollout, actor = allocation.rollout, allocation.actor
    serving = rollout.world_size if rollout and not servers_on_cpu else 0
    training = actor.world_size if actor else 0
    shared = devices.num_gpus == 1 and serving == 1 and training == 1
    needed = 0 if not devices.num_gpus else 1 if shared else serving + training
    return replace(
        allocation,
        shared_device=shared,
        num_gpus=needed,
        needs=(*allocation.needs, *_missing_devices(allocation, needed, devices, cluster, machine, keys, fixed_keys)),
        warnings=(*allocation.warnings, *_warnings(allocation, shared, devices, cluster, machine, keys)),
    )


def _missing_devices(
    allocation: Allocation,
    needed: int,
    devices: Devices,
    cluster: ClusterSize,
    machine: Machine,
    keys: Mapping[str, str],
    fixed_keys: Sequence[str],
) -> Iterator[Problem]:
    rollout, per_node = allocation.rollout, devices.gpus_per_node
    key = keys["rollout"] if allocation.rollout else keys["actor"]
    if needed > devices.num_gpus:
        yield Problem(
            key,
            f"{allocation} takes {plural(needed, 'GPU')}; the cluster has {devices}. Write smaller sizes, leave them "
            f"to auto, or raise cluster.n_nodes or {GPUS_KEY}",
            also=(GPUS_KEY, "cluster.n_nodes"),
        )
    elif rollout and per_node and rollout.world_size // rollout.data > per_node:
        one = rollout.world_size // rollout.data
        yield Problem(
            key,
            f"one server of {rollout} takes {plural(one, 'GPU')} and a node has {per_node}; a server cannot span "
            f"nodes. Write a t (and p) of at most {per_node}",
            also=(GPUS_KEY,),
        )
    if (cluster.type == "local" or not machine.is_here) and machine.num_gpus < min(per_node, needed):
        has = plural(machine.num_gpus, "GPU") if machine.num_gpus else "none"
        yield Problem(
            GPUS_KEY,
            f"{allocation} needs {plural(min(per_node, needed), 'GPU')} on {machine.place}, which has {has} "
            f"({machine.how}). Write {' '.join(f'{each}=auto' for each in (*fixed_keys, GPUS_KEY))} to use what it has",
        )


def _warnings(
    allocation: Allocation,
    shared: bool,
    devices: Devices,
    cluster: ClusterSize,
    machine: Machine,
    keys: Mapping[str, str],
) -> Iterator[Problem]:
    if allocation.servers_only:
        yield Problem(
            "allocation_mode",
            f"{allocation} starts servers and no trainer. To train as well, name one after '+', such as "
            f"{allocation}+fsdp:d1",
        )
    if shared:
        yield Problem(keys["rollout"], "the server and the trainer share the one GPU; its memory is split between them")
    if cluster.type != "local" and cluster.n_gpus_per_node == "auto" and machine.is_here:
        gpus = plural(machine.num_gpus, "GPU") if machine.num_gpus else "no GPU"
        yield Problem(
            GPUS_KEY,
            f"the nodes of a {cluster.type} cluster are assumed to have as many GPUs as this machine: {gpus} "
            f"({machine.how}). Set it to their number of GPUs. Cores are not assumed: launcher.*_cpus_per_gpu sets "
            "the threads",
        )
