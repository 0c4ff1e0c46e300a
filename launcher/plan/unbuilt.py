"""What can be planned already and not started yet."""

from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.experiment import starts_servers
from areal_like.config.experiment import GRPOConfig
from launcher.plan.plan import Obstacle

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

STORES = ("nfs", "memory")


def unbuilt(config: "BaseExperimentConfig", allocation: Allocation | None) -> list[Obstacle]:
    """Each with what can be started instead."""
    found = []
    if config.cluster.type != "local":
        reason = f"{config.cluster.type} is planned here and not started yet; local starts a run on this machine"
        found.append(Obstacle("cluster.type", reason, pending=True, unbuilt=True))
    if config.cluster.name_resolve.type not in STORES:
        reason = f"{config.cluster.name_resolve.type} is not there yet; use nfs"
        found.append(Obstacle("cluster.name_resolve.type", reason, pending=True, unbuilt=True))
    if isinstance(config, GRPOConfig) and allocation and allocation.rollout and starts_servers(config):
        backend = allocation.rollout.backend
        if backend != "embedded":
            reason = f"servers of {backend} are planned here and not started yet; embedded serves"
            found.append(Obstacle("rollout.backend", reason, pending=True, unbuilt=True))
    return found
