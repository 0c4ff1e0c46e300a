"""Which engine runs on how many devices: read from `allocation_mode` and the `.backend` keys, filled from the machine.

The one door is `resolve`; `machine` looks at the machine that it is given.
"""

from areal_like.config.allocation.base import (
    SERVERS,
    TRAINERS,
    Allocation,
    AllocationProblem,
    ClusterSize,
    ParallelStrategy,
)
from areal_like.config.allocation.grammar import AllocationSyntaxError, parse_mode, parse_server, parse_trainer
from areal_like.config.allocation.machine import Machine, detect_machine
from areal_like.config.allocation.resolution import resolve

__all__ = [
    "SERVERS",
    "TRAINERS",
    "Allocation",
    "AllocationProblem",
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
