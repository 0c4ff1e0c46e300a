"""Traces and snapshots that could not be made, or that nobody could open."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from launcher.plan.plan import BatchPlan, PlanProblem

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

MAX_TRACED_STEPS = 10
"""Of a trace: beyond that no viewer opens it."""


def profiler_problems(
    config: "BaseExperimentConfig", allocation: Allocation | None, batch: BatchPlan
) -> Iterator[PlanProblem]:
    asked = config.profiler
    if asked.memory_path is not None and allocation is not None and not allocation.num_gpus:
        reason = "snapshots are of a GPU's memory, and this run trains on the CPU; leave it out"
        yield PlanProblem("profiler.memory_path", f"{reason} (perf/memory_gb says the most that was held)")
    if asked.trace_path is not None and (batch.total_steps is None or batch.total_steps >= MAX_TRACED_STEPS):
        steps = "all epochs" if batch.total_steps is None else f"{batch.total_steps} steps"
        reason = f"a trace of {steps} is larger than any viewer opens"
        yield PlanProblem(
            "profiler.trace_path", f"{reason}; take total_train_steps below {MAX_TRACED_STEPS}, or bench=true"
        )
