"""What a run of several processes on this machine alone cannot do."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.problems import Problem
from launcher.plan.placement import PlacementPlan

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def several_nodes(config: "BaseExperimentConfig", placement: PlacementPlan | None = None) -> Iterator[Problem]:
    if config.cluster.type != "local":
        return
    if placement is not None and placement.num_nodes > 1:
        reason = f"local starts processes only on this machine, and this run needs {placement.num_nodes} nodes"
        hint = "choose sizes that fit into one, and cluster.n_nodes=1"
        yield Problem("cluster.type", f"{reason}; {hint} (several nodes are not started yet)")
    elif config.cluster.n_nodes > 1:
        reason = f"is {config.cluster.n_nodes}, and cluster.type=local starts processes only on this machine"
        yield Problem("cluster.n_nodes", f"{reason}; set it to 1 (several nodes are not started yet)")


def names_in_memory(config: "BaseExperimentConfig") -> Iterator[Problem]:
    if config.cluster.name_resolve.type == "memory":
        reason = "memory works within one process only, and a run has several; use nfs"
        yield Problem("cluster.name_resolve.type", reason)
