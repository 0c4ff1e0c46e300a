"""Checks that a step can be divided into its parts."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import trained_models
from areal_like.config.checks.training import has_trainer
from areal_like.config.problems import Problem, plural
from launcher.plan.plan import BatchPlan

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def step_part_problems(
    config: "BaseExperimentConfig", batch: BatchPlan, allocation: Allocation | None = None
) -> Iterator[Problem]:
    """Engines that follow the actor are reported once, for the actor."""
    samples, seen = batch.samples_per_step, set()
    for name, engine in trained_models(config) if has_trainer(allocation) else ():
        updates, granularity = getattr(engine, "ppo_n_minibatches", 1), engine.mb_spec.granularity
        if name != "ref" and updates > samples and ("updates", updates) not in seen:
            has = plural(samples, "sample")
            yield Problem(
                f"{name}.ppo_n_minibatches", f"a step has {has}, which cannot be divided into {updates} parts"
            )
        if samples % granularity and ("granularity", granularity) not in seen:
            reason = f"{granularity} does not divide the {plural(samples, 'sample')} of a step"
            yield Problem(f"{name}.mb_spec.granularity", reason)
        seen |= {("updates", updates), ("granularity", granularity)}
