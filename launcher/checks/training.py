"""Checks for valid configurations whose training would be wrong or without effect."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation.models import generates, trained_models
from areal_like.config.checks import sampling
from areal_like.config.experiment import GRPOConfig, RWConfig, SFTConfig
from areal_like.config.problems import Problem, plural
from launcher.plan.plan import BatchPlan

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def training_problems(config: "BaseExperimentConfig", batch: BatchPlan) -> Iterator[Problem]:
    """For runs with a trainer."""
    yield from _data(config)
    yield from _parts(config, batch)
    if generates(config):
        if not config.rollout.allow_mismatched_sampling:
            yield from (Problem(*refused) for refused in sampling.mismatch_problems(config.gconfig))
        yield from _groups(config)


def _data(config: "BaseExperimentConfig") -> Iterator[Problem]:
    kinds = (
        (GRPOConfig, "rl", "reinforcement learning"),
        (SFTConfig, "sft", "fine-tuning"),
        (RWConfig, "rw", "a reward model"),
    )
    for cls, expected, noun in kinds:
        actual = config.train_dataset.type
        if isinstance(config, cls) and actual != expected:
            yield Problem("train_dataset.type", f"{actual} rows do not fit {noun}, which needs {expected}")


def _parts(config: "BaseExperimentConfig", batch: BatchPlan) -> Iterator[Problem]:
    """Steps that cannot be divided into parts. Engines that follow the actor are reported once, for the actor."""
    samples, seen = batch.samples_per_step, set()
    for name, engine in trained_models(config):
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


def _groups(config: GRPOConfig) -> Iterator[Problem]:
    """Groups of one sample, which have nothing to compare with."""
    norm = config.actor.reward_norm
    if config.gconfig.n_samples > 1:
        return
    if norm is not None and norm.mean_level == "group":
        reason = "1 answer per prompt less the mean of its group (actor.reward_norm.mean_level) is always 0, so "
        yield Problem("gconfig.n_samples", reason + "nothing would be learned; use at least 2, or mean_level=batch")
    if config.actor.dynamic_sampling:
        reason = "drops groups whose rewards are all equal, and with gconfig.n_samples=1 that is every group; "
        yield Problem("actor.dynamic_sampling", reason + "use at least 2 samples, or set it to false")
