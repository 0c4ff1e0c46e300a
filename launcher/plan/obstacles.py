"""What a real start would be refused for: by the configuration itself, and by what this framework does not do yet."""

from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation, Finding
from areal_like.config.experiment import GRPOConfig
from launcher.plan import environment
from launcher.plan.plan import Obstacle
from launcher.plan.servers import ServerStart

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

BY_SCHEMA = ("default", "group of the schema")


def obstacles(
    loaded: "Loaded", allocation: Allocation | None, problems: list[Finding], starts: list[ServerStart]
) -> list[Obstacle]:
    """Most particular first; each thing once."""
    from areal_like.config.dialects.areal import cannot_start

    found = [Obstacle(key, reason) for key, reason in cannot_start(loaded.values, loaded.cls.__name__)]
    found += [Obstacle(finding.key, finding.message) for finding in problems]
    found += [Obstacle(finding.key, finding.message) for finding in (allocation.cannot_start if allocation else ())]
    for start in starts[:1]:
        found += start.obstacles
    found += environment.obstacles(loaded.config)
    return found + _processes(loaded, allocation)


def _processes(loaded: "Loaded", allocation: Allocation | None) -> list[Obstacle]:
    config, found = loaded.config, []
    if config.cluster.name_resolve.type == "memory":
        reason = "memory reaches no other process, and a run is several; use nfs"
        found.append(Obstacle("cluster.name_resolve.type", reason))
    if isinstance(config, GRPOConfig) and allocation and allocation.rollout:
        engine, path = allocation.rollout.backend, config.actor.path
        if engine != "embedded" and path.startswith("builtin:") and not config.rollout.server_addresses:
            reason = f"{engine} serves folders and names on the Hub, and {path} is neither; set rollout.backend=embedded"
            found.append(Obstacle("actor.path", reason))
    return found


def promised(loaded: "Loaded") -> list[Obstacle]:
    """Keys of other frameworks that somebody set and that do nothing here: refused ones each by itself with what to
    write instead, the ones still to come together in one."""
    from areal_like.config import promises

    refused, pending = [], []
    for path in loaded.changed():
        promise = promises.at(path)
        if promise is None or promise.state == "live" or loaded.origin(path).kind in BY_SCHEMA:
            continue
        if promise.state == "refused":
            refused.append(Obstacle(path, promise.reason))
        else:
            pending.append(path)
    if pending:
        one = len(pending) == 1
        what = "this key is accepted and has" if one else f"these {len(pending)} keys are accepted and have"
        refused.append(Obstacle(", ".join(pending), f"{what} no tested effect yet (docs/keys.md)"))
    return refused
