"""Chooses how sent weights reach the servers, from the GPUs that trainer and servers report. Imports no torch.

NCCL takes one process per GPU, so that a trainer and a server on the same GPU share its memory (CUDA IPC). Without a
GPU on either side weights go through main memory, by gloo.
"""

from collections.abc import Sequence
from typing import NamedTuple

COLLECTIVE_MODES = ("collective", "xccl", "nccl")
"""Values of `actor.weight_update_mode` with which weights are sent."""
FILE_MODES = ("disk", "filesystem")
"""Those with which they are files."""
GLOO, NCCL, IPC = "gloo", "nccl", "ipc"
MIG = "MIG-"
"""Begins the id of a part of a GPU."""
SHARED_BUFFERS, SHARED_BUFFER_BYTES = 2, 128 * 2**20
"""Memory of the trainer's GPU through which weights go from main memory to a server on the same GPU."""
NCCL_SLOTS, NCCL_SLOT_BYTES = 2, 64 * 2**20
"""The same to servers on other GPUs."""


class Receiver(NamedTuple):
    """A server: the GPU of each of its processes, none if they receive into main memory. `fault`: why its GPUs are not
    to be used."""

    name: str
    processes: int
    devices: Sequence[str]
    fault: str = ""


class TransferPath(NamedTuple):
    backend: str
    reason: str


def choose_path(trainer: Sequence[str], receivers: Sequence[Receiver]) -> TransferPath:
    """`trainer`: the GPU of its first rank, which sends."""
    if not trainer:
        return TransferPath(GLOO, "the trainer has no GPU")
    for receiver in receivers:
        if receiver.fault:
            return TransferPath(GLOO, f"{receiver.name}: {receiver.fault}")
        if len(receiver.devices) != receiver.processes:
            return TransferPath(GLOO, f"{receiver.name} receives into main memory")
    devices = [device for receiver in receivers for device in receiver.devices]
    if all(device == trainer[0] for device in devices):
        return TransferPath(IPC, "trainer and servers share a GPU")
    used = [*trainer, *devices]
    shared = next((device for device in used if used.count(device) > 1), None)
    if shared is not None:
        return TransferPath(GLOO, f"some processes share GPU {shared} and others do not")
    if any(device.startswith(MIG) for device in used):
        return TransferPath(GLOO, "NCCL does not connect parts of GPUs")
    return TransferPath(NCCL, "each process has a GPU of its own")
