"""Valid configurations whose training would be wrong or without effect, on any machine."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation.base import Allocation, ParallelStrategy
from areal_like.config.allocation.grammar import parse_trainer
from areal_like.config.allocation.models import generates, only_evaluates, starts_servers, trained_models
from areal_like.config.checks import sampling
from areal_like.config.engines import gpu_engines
from areal_like.config.experiment import GRPOConfig, RWConfig, SFTConfig
from areal_like.config.fields import NOT_YET
from areal_like.config.problems import Problem

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

FILES = {"rl": "grpo.yaml", "sft": "sft.yaml", "rw": "reward_model.yaml"}
"""Type of rows -> a shipped experiment for them."""


def has_trainer(allocation: Allocation | None) -> bool:
    """Whether the run trains; where the allocation is not known, it does."""
    return allocation is None or allocation.actor is not None


def nothing_to_do(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Without a step there must be an evaluation of answers."""
    if config.total_train_steps == 0 and not generates(config):
        yield Problem("total_train_steps", "is 0, which only evaluates, and no answers are sampled here; train a step")
    elif only_evaluates(config) and config.valid_dataset is None and not config.evaluator.benchmarks:
        key, why = "allocation_mode", "has no trainer"
        if config.total_train_steps == 0:
            key, why = "total_train_steps", "is 0"
        yield Problem(
            key, f"{why}, which only evaluates, and nothing is evaluated; set valid_dataset or evaluator.benchmarks"
        )


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
        key, actual = "train_dataset.type", config.train_dataset.type
        if isinstance(config, cls) and actual != expected:
            message = f"{actual} rows do not fit {noun}, which needs {expected}"
            yield Problem(key, f"{message}; {key}={actual} is for {FILES[actual]}")


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


def openai_services(config: "BaseExperimentConfig") -> Iterator[Problem]:
    if isinstance(config, GRPOConfig) and config.rollout.server_type == "openai" and not only_evaluates(config):
        if not config.rollout.server_addresses:
            return
        message = (
            "an openai service cannot load new weights, and would answer with other weights than those in training"
        )
        titles = " or ".join(keys.title for keys in gpu_engines())
        hint = f"use servers of this framework (python -m launcher --config FILE serve), {titles}"
        yield Problem("rollout.server_type", f"{message}; {hint}")


def split_models(config: "BaseExperimentConfig", allocation: Allocation | None = None) -> Iterator[Problem]:
    """Trainers that divide a model. Without an allocation the backend keys are used."""
    seen = set()
    for name, engine in trained_models(config) if has_trainer(allocation) else ():
        parallel = getattr(allocation, "actor" if name == "model" else name, None)
        if parallel is None and engine.backend not in ("", "auto"):
            parallel = ParallelStrategy.of(parse_trainer(engine.backend))
        if allocation is not None and parallel is not None and parallel.backend != "fsdp":
            continue  # the allocation reports other backends
        if parallel is not None and parallel.world_size != parallel.data and str(parallel) not in seen:
            seen.add(str(parallel))
            message = f"{parallel} needs more than data parallelism, which {NOT_YET}"
            yield Problem(f"{name}.backend", f"{message}; use fsdp:d{parallel.world_size}")


def served_first_layers(config: "BaseExperimentConfig") -> Iterator[Problem]:
    if starts_servers(config) and generates(config):
        debug = config.actor.debug
        if debug is not None and debug.num_layers:
            hint = "use sft.yaml with model.debug.num_layers to make such a model, and then that as actor.path"
            yield Problem("actor.debug.num_layers", f"serving only the first layers of a model {NOT_YET}; {hint}")


def group_sizes(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """A group is a prompt with its answers."""
    if not generates(config):
        return
    actor, n_samples = config.actor, config.gconfig.n_samples
    sizes = {"actor.group_size": actor.group_size}
    for name in ("reward_norm", "adv_norm"):
        norm = getattr(actor, name)
        if norm is not None:
            sizes[f"actor.{name}.group_size"] = norm.group_size
    for key, size in sizes.items():
        if size != n_samples:
            message = (
                f"is {size}, but a group is a prompt with all its answers (gconfig.n_samples={n_samples}), however many"
            )
            yield Problem(key, f"{message} a workflow of your own makes of it; leave it out")


def group_baselines(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Only one can be used, and only one divisor."""
    if not generates(config):
        return
    actor = config.actor
    centres = actor.reward_norm is not None and actor.reward_norm.mean_level is not None
    if centres and any(dataclasses.asdict(actor.advantage).values()):
        yield Problem("actor.advantage", "subtracts a group baseline, and so does actor.reward_norm; use one of them")
    if actor.advantage.mean_norm and actor.advantage.std_norm:
        message = "divides by the mean of the group, and actor.advantage.std_norm by a deviation; use one of them"
        yield Problem("actor.advantage.mean_norm", message, also=("actor.advantage.std_norm",))
