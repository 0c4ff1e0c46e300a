"""Valid configurations whose training would be wrong or without effect, on any machine."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation.base import Allocation
from areal_like.config.allocation.models import generates, trained_models
from areal_like.config.checks import sampling
from areal_like.config.experiment import GRPOConfig, RWConfig, SFTConfig
from areal_like.config.problems import Problem

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def has_trainer(allocation: Allocation | None) -> bool:
    """Whether the run trains; where the allocation is not known, it does."""
    return allocation is None or allocation.actor is not None


def frozen_models(config: "BaseExperimentConfig") -> Iterator[Problem]:
    for name, engine in trained_models(config):
        if name not in ("ref", "critic") and engine.optimizer is None:
            yield Problem(f"{name}.optimizer", "is null, which freezes the model: nothing would be trained")


def row_types(config: "BaseExperimentConfig", allocation: Allocation | None = None) -> Iterator[Problem]:
    kinds = (
        (GRPOConfig, "rl", "reinforcement learning"),
        (SFTConfig, "sft", "fine-tuning"),
        (RWConfig, "rw", "a reward model"),
    )
    for cls, expected, noun in kinds if has_trainer(allocation) else ():
        actual = config.train_dataset.type
        if isinstance(config, cls) and actual != expected:
            yield Problem("train_dataset.type", f"{actual} rows do not fit {noun}, which needs {expected}")


def mismatched_sampling(config: "BaseExperimentConfig", allocation: Allocation | None = None) -> Iterator[Problem]:
    if generates(config) and has_trainer(allocation) and not config.rollout.allow_mismatched_sampling:
        yield from sampling.mismatch_problems(config.gconfig)


def groups_of_one(config: "BaseExperimentConfig", allocation: Allocation | None = None) -> Iterator[Problem]:
    """Groups of one sample, which have nothing to compare with."""
    if not generates(config) or not has_trainer(allocation) or config.gconfig.n_samples > 1:
        return
    norm = config.actor.reward_norm
    if norm is not None and norm.mean_level == "group":
        reason = "1 answer per prompt less the mean of its group (actor.reward_norm.mean_level) is always 0, so "
        yield Problem("gconfig.n_samples", reason + "nothing would be learned; use at least 2, or mean_level=batch")
    if config.actor.dynamic_sampling:
        reason = "drops groups whose rewards are all equal, and with gconfig.n_samples=1 that is every group; "
        yield Problem("actor.dynamic_sampling", reason + "use at least 2 samples, or set it to false")
