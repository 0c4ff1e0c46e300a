"""What a real start would be refused for: by the configuration itself, and by what this framework does not do."""

from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation, AllocationProblem
from areal_like.config.allocation.models import trained_models
from areal_like.config.checks.not_built import not_built_problems
from areal_like.config.checks.refused import refusal
from launcher.checks.attached import address_problems
from launcher.checks.engines import head_size_problems
from launcher.checks.fake_data import fake_data_problems
from launcher.checks.parallel_sizes import parallel_size_problems
from launcher.checks.profiler import profiler_problems
from launcher.checks.training import training_problems
from launcher.plan import environment
from launcher.plan.host import HostInfo
from launcher.plan.lengths import answer_length_problems
from launcher.plan.placement import PlacementPlan
from launcher.plan.plan import BatchPlan, PlanProblem
from launcher.plan.processes import ServerCommand

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

SCHEMA_ORIGINS = ("default", "group of the schema")


def configuration_problems(
    loaded: "Loaded",
    allocation: Allocation | None,
    problems: list[AllocationProblem],
    placement: PlacementPlan | None,
    starts: list[ServerCommand],
    batch: BatchPlan,
    host: HostInfo,
) -> list[PlanProblem]:
    """What the configuration says first, then what follows from it."""
    from areal_like.config.dialects.areal import cannot_start

    foreign = [leaf.path for leaf in loaded.foreign]
    found = [PlanProblem(key, reason) for key, reason in cannot_start(loaded.values, loaded.cls.__name__, foreign)]
    found += [PlanProblem(finding.key, finding.message) for finding in problems]
    found += [PlanProblem(finding.key, finding.message) for finding in (allocation.cannot_start if allocation else ())]
    found += [
        PlanProblem(f"{name}.optimizer", "is null, which freezes the model: nothing would be trained")
        for name, engine in trained_models(loaded.config)
        if name not in ("ref", "critic") and engine.optimizer is None
    ]
    if allocation is not None:
        found += parallel_size_problems(loaded.config, allocation, host)
    if allocation is None or allocation.actor is not None:
        found += training_problems(loaded.config, batch)
        found += answer_length_problems(loaded.config, allocation, host)
    for start in starts[:1]:
        found += [PlanProblem(*pair) for pair in start.problems]
    found += fake_data_problems(loaded.config, batch)
    found += profiler_problems(loaded.config, allocation, batch)
    found += [*environment.environment_problems(loaded.config), *address_problems(loaded.config)]
    found += head_size_problems(loaded.config, allocation, host)
    found += _processes(loaded.config, placement)
    found += [PlanProblem(*problem) for problem in not_built_problems(loaded.config, allocation)]
    return found + _refused_keys(loaded)


def _processes(config: "BaseExperimentConfig", placement: PlacementPlan | None) -> list[PlanProblem]:
    found = []
    if config.cluster.type == "local" and placement is not None and placement.num_nodes > 1:
        reason = f"local starts processes on this machine alone, and these take {placement.num_nodes} nodes"
        hint = "take sizes that fit into one, and cluster.n_nodes=1"
        found.append(PlanProblem("cluster.type", f"{reason}; {hint} (several nodes are not started yet)"))
    elif config.cluster.type == "local" and config.cluster.n_nodes > 1:
        reason = f"is {config.cluster.n_nodes}, and cluster.type=local starts processes on this machine alone"
        found.append(PlanProblem("cluster.n_nodes", f"{reason}; set it to 1 (several nodes are not started yet)"))
    if config.cluster.name_resolve.type == "memory":
        reason = "memory reaches no other process, and a run is several; use nfs"
        found.append(PlanProblem("cluster.name_resolve.type", reason))
    return found


def _refused_keys(loaded: "Loaded") -> list[PlanProblem]:
    """Keys of other frameworks that nothing here can honour, where the user sets one."""
    set_by_user = (path for path in loaded.changed() if loaded.origin(path).kind not in SCHEMA_ORIGINS)
    return [PlanProblem(path, reason) for path in set_by_user if (reason := refusal(path)) is not None]
