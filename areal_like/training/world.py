"""The group of trainer ranks: device, meshes, reductions, and rendezvous."""

import ipaddress
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from areal_like.config.problems import plural
from areal_like.process import pulse
from areal_like.process.errors import Failure

AGENT = "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torchrun, whose agent provides a store."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOOPBACK = "lo"
VISIBLE = "CUDA_VISIBLE_DEVICES"

c10d: Any = dist
"""Untyped: its annotations lack some functions used here."""


class World:
    """One rank's view of all ranks. With one rank every method is the identity."""

    def __init__(self, rank: int, size: int, device: torch.device, store: Any = None) -> None:
        """`store` is that of the rendezvous, where this process knows it."""
        self.rank, self.size, self.device, self.store = rank, size, device, store
        self.mesh = DeviceMesh(device.type, torch.arange(size), mesh_dim_names=("data",))
        self._meshes = {1: self.mesh}

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def mesh_with_replicas(self, replicas: int) -> DeviceMesh:
        """The mesh that a model is sharded over: all ranks, or groups of neighbours with a full replica each."""
        if replicas not in self._meshes:
            ranks = torch.arange(self.size).view(replicas, -1)
            self._meshes[replicas] = DeviceMesh(self.device.type, ranks, mesh_dim_names=("replica", "data"))
        return self._meshes[replicas]

    def mesh_of_this_rank(self) -> DeviceMesh:
        """For a module that is not shared with other ranks. All ranks must call it."""
        return self.mesh if self.size == 1 else self.mesh_with_replicas(self.size)["data"]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums each value over the ranks, in double precision, without a GPU: no rank waits for its kernels."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.MAX)

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over the ranks, in its own precision and on its own device."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        with pulse.phase(pulse.COLLECTIVE):
            dist.all_reduce(total)
        return total

    def first(self, values: Sequence[float]) -> list[float]:
        """The first rank's values."""
        if self.size == 1:
            return list(values)
        broadcast = torch.tensor(values, dtype=torch.float64)
        with pulse.phase(pulse.COLLECTIVE):
            dist.broadcast(broadcast, src=0)
        return broadcast.tolist()

    def barrier(self) -> None:
        if self.size > 1:
            with pulse.phase(pulse.COLLECTIVE):
                dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1 or not values:
            return list(values)
        reduced = torch.tensor(values, dtype=torch.float64)
        with pulse.phase(pulse.COLLECTIVE):
            dist.all_reduce(reduced, op=operation)
        return reduced.tolist()


def require_gpus(per_node: int | str) -> None:
    """Refuses to train on a CPU, or two ranks on one GPU, where the plan has GPUs. `per_node`: those that a run may
    use."""
    visible = os.environ.get(VISIBLE)
    if not isinstance(per_node, int) or not per_node:
        return
    wanted = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found >= wanted:
        return
    is_built = torch.version.cuda or torch.version.hip
    why = "check the driver (nvidia-smi)" if is_built else "install a torch that is built for CUDA"
    named = "" if visible is None else f" in {VISIBLE}={visible}"
    raise Failure(
        f"cluster.n_gpus_per_node: the trainer ranks of this machine need {plural(wanted, 'GPU')}, and torch "
        f"{torch.__version__} finds {found or 'none'}{named}; {why}, or train on the CPU with cluster.n_gpus_per_node=0"
    )


def open_world(timeout_s: float) -> World:
    """Joins the other ranks by torchrun's variables; without these the process is the only rank. Ranks with GPUs reduce
    what is in host memory there."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    with pulse.phase(pulse.COLLECTIVE):  # others may still be starting
        store = rendezvous_store(rank, size, timeout_s)
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
            device_id=None if device.type == "cpu" else device,
        )
    return World(rank, size, device, store)


def rendezvous_store(rank: int, size: int, timeout_s: float) -> Any:
    """The store of the rendezvous; None where torch picks the right one. By default torch's store would listen on every
    address of the machine, and gloo on that of its host name."""
    if size == 1:  # a single rank needs no port
        return c10d.HashStore()
    if os.environ.get(AGENT) == "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    is_loopback = ipaddress.ip_address(place[0]).is_loopback
    on_one_node = int(os.environ.get("LOCAL_WORLD_SIZE", size)) == size
    if is_loopback and on_one_node:
        for name in INTERFACES:
            os.environ.setdefault(name, LOOPBACK)
    handle = None
    if rank == 0:
        # On several nodes this node's name may resolve to loopback here and to another address elsewhere.
        bound = place if on_one_node or not is_loopback else ("", port)
        handle = socket.create_server((bound[0], bound[1]), family=family, backlog=max(128, 2 * size)).detach()
    return c10d.TCPStore(
        host,
        port,
        size,
        is_master=rank == 0,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=handle,
    )
