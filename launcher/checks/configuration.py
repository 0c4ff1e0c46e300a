"""Problems of the configuration that prevent a start, and features that are not built."""

from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import trained_models
from areal_like.config.checks.not_built import not_built_problems
from areal_like.config.checks.refused import refusal
from areal_like.config.problems import Problem
from launcher.checks.attached_servers import address_problems
from launcher.checks.engines import update_mode_problems
from launcher.checks.fake_data import fake_data_problems
from launcher.checks.parallel_sizes import parallel_size_problems
from launcher.checks.profiler import profiler_problems
from launcher.checks.training import training_problems
from launcher.plan import environment
from launcher.plan.host import HostInfo
from launcher.plan.lengths import answer_length_problems
from launcher.plan.placement import PlacementPlan
from launcher.plan.plan import BatchPlan
from launcher.plan.processes import ServerCommand

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

SCHEMA_ORIGINS = ("default", "group of the schema")


def configuration_problems(
    loaded: "Loaded",
    allocation: Allocation | None,
    allocation_problems: list[Problem],
    placement: PlacementPlan | None,
    starts: list[ServerCommand],
    batch: BatchPlan,
    host: HostInfo,
) -> list[Problem]:
    """Problems of the configuration itself first, then those that follow from it."""
    from areal_like.config.dialects.areal import cannot_start

    foreign = [leaf.path for leaf in loaded.foreign]
    problems = [Problem(key, reason) for key, reason in cannot_start(loaded.values, loaded.cls.__name__, foreign)]
    for problem in (*allocation_problems, *(allocation.cannot_start if allocation else ())):
        problems.append(Problem(problem.key, problem.message))
    problems += [
        Problem(f"{name}.optimizer", "is null, which freezes the model: nothing would be trained")
        for name, engine in trained_models(loaded.config)
        if name not in ("ref", "critic") and engine.optimizer is None
    ]
    if allocation is not None:
        problems += parallel_size_problems(loaded.config, allocation, host)
    if allocation is None or allocation.actor is not None:
        problems += training_problems(loaded.config, batch)
        problems += answer_length_problems(loaded.config, allocation, host)
        problems += update_mode_problems(loaded.config, allocation)
    for start in starts[:1]:
        problems += [Problem(*pair) for pair in start.problems]
    problems += fake_data_problems(loaded.config, batch)
    problems += profiler_problems(loaded.config, allocation, batch)
    problems += [*environment.environment_problems(loaded.config), *address_problems(loaded.config)]
    problems += _processes(loaded.config, placement)
    problems += [Problem(*pair) for pair in not_built_problems(loaded.config, allocation)]
    return problems + _refused_keys(loaded)


def _processes(config: "BaseExperimentConfig", placement: PlacementPlan | None) -> list[Problem]:
    problems = []
    if config.cluster.type == "local" and placement is not None and placement.num_nodes > 1:
        reason = f"local starts processes only on this machine, and this run needs {placement.num_nodes} nodes"
        hint = "choose sizes that fit into one, and cluster.n_nodes=1"
        problems.append(Problem("cluster.type", f"{reason}; {hint} (several nodes are not started yet)"))
    elif config.cluster.type == "local" and config.cluster.n_nodes > 1:
        reason = f"is {config.cluster.n_nodes}, and cluster.type=local starts processes only on this machine"
        problems.append(Problem("cluster.n_nodes", f"{reason}; set it to 1 (several nodes are not started yet)"))
    if config.cluster.name_resolve.type == "memory":
        reason = "memory works within one process only, and a run has several; use nfs"
        problems.append(Problem("cluster.name_resolve.type", reason))
    return problems


def _refused_keys(loaded: "Loaded") -> list[Problem]:
    """Keys of other frameworks that nothing here can honour, where the user sets one."""
    set_by_user = (path for path in loaded.changed() if loaded.origin(path).kind not in SCHEMA_ORIGINS)
    return [Problem(path, reason) for path in set_by_user if (reason := refusal(path)) is not None]
