"""Where a worker of an engine runs. Runs in the engine's environment."""

import os
import socket
from pathlib import Path
from typing import Any

import torch

from areal_like.weights.gpu_ids import gpu_ids

PROC = Path("/proc")


def place_of(rank: int, device: torch.device) -> dict[str, Any]:
    """`machine`: the same for all processes that see the same files in the same memory. `devices`: its GPU, if it
    computes on one."""
    boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    machine = f"{socket.gethostname()} {boot} {os.readlink(PROC / 'self/ns/mnt')}"
    return {"rank": rank, "machine": machine, "devices": gpu_ids(device)}
