"""The trainer ranks as one: who is who, on which device, and how they add up."""

import os
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from areal_like.training.rendezvous import rendezvous_store


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
