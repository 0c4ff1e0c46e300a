"""What a real start would be refused for: by the configuration itself, and by what this framework does not do."""

from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation, Finding
from areal_like.config.allocation.experiment import trained_models
from areal_like.config.limits import refusals
from launcher.plan import environment
from launcher.plan.attached import addresses_obstacles
from launcher.plan.engines import head_obstacles
from launcher.plan.fake import fake_obstacles
from launcher.plan.host import Host
from launcher.plan.learning import learning_obstacles
from launcher.plan.limits import room_obstacles
from launcher.plan.placement import Placement
from launcher.plan.plan import Batch, Obstacle
from launcher.plan.profiler import profiler_obstacles
from launcher.plan.servers import ServerStart
from launcher.plan.sizes import size_obstacles

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

BY_SCHEMA = ("default", "group of the schema")


def obstacles(
    loaded: "Loaded",
    allocation: Allocation | None,
    problems: list[Finding],
    placement: Placement | None,
    starts: list[ServerStart],
    batch: Batch,
    host: Host,
) -> list[Obstacle]:
    """What the configuration says first, then what follows from it."""
    from areal_like.config.dialects.areal import cannot_start

    foreign = [leaf.path for leaf in loaded.foreign]
    found = [Obstacle(key, reason) for key, reason in cannot_start(loaded.values, loaded.cls.__name__, foreign)]
    found += [Obstacle(finding.key, finding.message) for finding in problems]
    found += [Obstacle(finding.key, finding.message) for finding in (allocation.cannot_start if allocation else ())]
    found += [
        Obstacle(f"{name}.optimizer", "is null, which freezes the model: nothing would be trained")
        for name, engine in trained_models(loaded.config)
        if name not in ("ref", "critic") and engine.optimizer is None
    ]
    if allocation is not None:
        found += size_obstacles(loaded.config, allocation, host)
    if allocation is None or allocation.actor is not None:
        found += learning_obstacles(loaded.config, batch)
        found += room_obstacles(loaded.config, allocation, host)
    for start in starts[:1]:
        found += [Obstacle(*pair) for pair in start.obstacles]
    found += fake_obstacles(loaded.config, batch)
    found += profiler_obstacles(loaded.config, allocation, batch)
    found += [*environment.obstacles(loaded.config), *addresses_obstacles(loaded.config)]
    found += head_obstacles(loaded.config, allocation, host)
    found += _processes(loaded.config, placement)
    found += [Obstacle(*refusal) for refusal in refusals(loaded.config, allocation)]
    return found + _promised(loaded)


def _processes(config: "BaseExperimentConfig", placement: Placement | None) -> list[Obstacle]:
    found = []
    if config.cluster.type == "local" and placement is not None and placement.num_nodes > 1:
        reason = f"local starts processes on this machine alone, and these take {placement.num_nodes} nodes"
        hint = "take sizes that fit into one, and cluster.n_nodes=1"
        found.append(Obstacle("cluster.type", f"{reason}; {hint} (several nodes are not started yet)"))
    elif config.cluster.type == "local" and config.cluster.n_nodes > 1:
        reason = f"is {config.cluster.n_nodes}, and cluster.type=local starts processes on this machine alone"
        found.append(Obstacle("cluster.n_nodes", f"{reason}; set it to 1 (several nodes are not started yet)"))
    if config.cluster.name_resolve.type == "memory":
        reason = "memory reaches no other process, and a run is several; use nfs"
        found.append(Obstacle("cluster.name_resolve.type", reason))
    return found


def _promised(loaded: "Loaded") -> list[Obstacle]:
    """Keys of other frameworks that will never mean anything here, where somebody set one."""
    from areal_like.config.promises import ledger as promises

    found = []
    for path in loaded.changed():
        promise = promises.at(path)
        if promise is not None and promise.state == "refused" and loaded.origin(path).kind not in BY_SCHEMA:
            found.append(Obstacle(path, promise.reason))
    return found
