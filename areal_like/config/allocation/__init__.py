"""Which engine runs on how many devices: read from `allocation_mode` and the `.backend` keys, filled from the machine.

The one door is `resolve`; `machine` looks at the machine that it is given.
"""

from areal_like.config.allocation.base import SERVERS, TRAINERS, Allocation, Cluster, Finding, Parallel
from areal_like.config.allocation.hardware import Machine, machine
from areal_like.config.allocation.parse import AllocationSyntaxError, parse_mode, parse_server, parse_trainer
from areal_like.config.allocation.resolution import resolve

__all__ = [
    "SERVERS",
    "TRAINERS",
    "Allocation",
    "AllocationSyntaxError",
    "Cluster",
    "Finding",
    "Machine",
    "Parallel",
    "machine",
    "parse_mode",
    "parse_server",
    "parse_trainer",
    "resolve",
]
