"""Checks of the profiler: memory snapshots without a GPU, traces too large to open."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.problems import Problem
from launcher.plan.plan import BatchPlan

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

MAX_TRACED_STEPS = 10
"""Viewers cannot open a trace of more steps."""


def profiler_problems(
    config: "BaseExperimentConfig", batch: BatchPlan, allocation: Allocation | None = None
) -> Iterator[Problem]:
    profiler = config.profiler
    if profiler.memory_path is not None and allocation is not None and not allocation.num_gpus:
        reason = "records GPU memory, and this run trains on the CPU; leave it out"
        yield Problem("profiler.memory_path", f"{reason} (perf/memory_gb has the peak of memory)")
    if profiler.trace_path is not None and (batch.total_steps is None or batch.total_steps >= MAX_TRACED_STEPS):
        steps = "all epochs" if batch.total_steps is None else f"{batch.total_steps} steps"
        reason = f"a trace of {steps} is too large for any viewer"
        yield Problem("profiler.trace_path", f"{reason}; set total_train_steps below {MAX_TRACED_STEPS}, or bench=true")
