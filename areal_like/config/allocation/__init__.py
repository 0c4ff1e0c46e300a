"""Which engine runs on how many devices: from `allocation_mode`, the `.backend` keys and the machine."""

from areal_like.config.allocation.base import (
    TRAINERS,
    Allocation,
    ClusterSize,
    ParallelStrategy,
)
from areal_like.config.allocation.grammar import AllocationSyntaxError, parse_mode, parse_server, parse_trainer
from areal_like.config.allocation.machine import Machine, detect_machine
from areal_like.config.allocation.resolution import resolve

__all__ = [
    "TRAINERS",
    "Allocation",
    "AllocationSyntaxError",
    "ClusterSize",
    "Machine",
    "ParallelStrategy",
    "detect_machine",
    "parse_mode",
    "parse_server",
    "parse_trainer",
    "resolve",
]
