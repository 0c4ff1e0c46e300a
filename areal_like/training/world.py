"""The trainer ranks as one: who is who, on which device, and how they add up."""

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

AGENT = "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torchrun, whose agent has a store of its own for the ranks."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOOPBACK = "lo"

c10d: Any = dist
"""Whose annotations leave out what is used here."""


class World:
    """A rank's view of all ranks. With one rank every method is the identity."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.mesh = DeviceMesh(device.type, torch.arange(size), mesh_dim_names=("data",))
        self._meshes = {1: self.mesh}

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def mesh_with_replicas(self, replicas: int) -> DeviceMesh:
        """The ranks as they hold a model: all of them share one, or groups of neighbours share a whole one each."""
        if replicas not in self._meshes:
            ranks = torch.arange(self.size).view(replicas, -1)
            self._meshes[replicas] = DeviceMesh(self.device.type, ranks, mesh_dim_names=("replica", "data"))
        return self._meshes[replicas]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value added up over the ranks, in double precision."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.MAX)

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """The same of a tensor, in its own precision."""
        if self.size == 1:
            return tensor
        together = tensor.to(self.device, copy=True)
        dist.all_reduce(together)
        return together.to(tensor.device)

    def first(self, values: Sequence[float]) -> list[float]:
        """What the first rank says."""
        if self.size == 1:
            return list(values)
        said = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.broadcast(said, src=0)
        return said.tolist()

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1 or not values:
            return list(values)
        together = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(together, op=operation)
        return together.tolist()


def open_world(timeout_s: float, shares_host_memory: bool = False) -> World:
    """Meets the other ranks as torchrun's variables say; a process without them is alone. With `shares_host_memory` the
    ranks of GPUs can put together what waits in host memory as well."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    of_gpus = "cpu:gloo,cuda:nccl" if shares_host_memory else "nccl"
    dist.init_process_group(
        "gloo" if device.type == "cpu" else of_gpus,
        store=rendezvous_store(rank, size, timeout_s),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
        device_id=None if device.type == "cpu" else device,
    )
    return World(rank, size, device)


def rendezvous_store(rank: int, size: int, timeout_s: float) -> Any:
    """The store by which the ranks find each other; None where torch finds the right one by itself. Left to itself
    torch lets a store listen on every address of the machine, and gloo on that of its host name."""
    if size == 1:  # a rank by itself needs no port to meet on
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
        # On several nodes a name of this one may lead to loopback here and to another address elsewhere.
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
