"""Benchmarks of `evaluator.benchmarks`: their interval, task, dataset and reward."""

from dataclasses import fields, replace
from typing import Any

from areal_like.config.environments import LIST as ENVIRONMENTS
from areal_like.config.environments import NamedTask, has_own_reward, has_task_reward, own_reward, task_by_id
from areal_like.config.sections.checkpoints import FrequencyConfig
from areal_like.config.sections.data import DatasetConfig, RowSourceConfig
from areal_like.config.sections.environments import EnvironmentConfig
from areal_like.config.sections.evaluation import BenchmarkConfig
from areal_like.config.sections.reward import RewardConfig, configured_rewards
from areal_like.config.task_names import task_as_path

BENCHMARKS = "evaluator.benchmarks"
INTERVALS = ("freq_epochs", "freq_steps", "freq_secs")
SPLIT = "benchmark/"
"""Of the rows of a benchmark, before its name."""


def clock_of(evaluator: Any, benchmark: BenchmarkConfig) -> FrequencyConfig:
    """Its own intervals, or those of the evaluator."""
    own = {name: getattr(benchmark, name) for name in INTERVALS}
    clock: FrequencyConfig = replace(evaluator, **own) if any(own.values()) else evaluator
    return clock


def is_on(clock: FrequencyConfig) -> bool:
    return any(getattr(clock, name) for name in INTERVALS)


def benchmark_task(benchmark: BenchmarkConfig) -> NamedTask | None:
    """Its task; a built-in one may also be named as the path."""
    if benchmark.id is not None:
        return task_by_id(benchmark.id, benchmark.args, benchmark.python)
    name = task_as_path(benchmark.path) or benchmark.task.name
    return None if name is None else NamedTask(name, dict(benchmark.task.args))


def task_key(section: str, source: BenchmarkConfig | EnvironmentConfig) -> str:
    """The key that names the task of a benchmark or environment in this section."""
    if source.id is not None:
        return f"{section}.id"
    return f"{section}.path" if task_as_path(source.path) is not None else f"{section}.task.name"


def dataset_of(benchmark: BenchmarkConfig) -> DatasetConfig:
    """Its rows as a dataset of prompts."""
    return DatasetConfig(**{field.name: getattr(benchmark, field.name) for field in fields(RowSourceConfig)})


def best_benchmark(config: Any) -> BenchmarkConfig | None:
    """That whose evaluations `saver.best` compares; None: those of `valid_dataset`."""
    name = config.saver.best.metric.split("/")[1]
    return next((each for each in config.evaluator.benchmarks if each.name == name), None)


def best_clock(config: Any) -> FrequencyConfig:
    """The interval of the evaluation that `saver.best` compares."""
    own = best_benchmark(config)
    clock: FrequencyConfig = config.evaluator if own is None else clock_of(config.evaluator, own)
    return clock


def brings_reward(benchmark: BenchmarkConfig) -> bool:
    """Whether it has a task or a reward of its own."""
    return has_task_reward(benchmark_task(benchmark)) or bool(configured_rewards(benchmark.reward))


def every_reward(config: Any) -> list[tuple[str, RewardConfig]]:
    """That of the experiment, then those that environments and benchmarks bring, each with what its keys begin with:
    empty, `environments.train.0.` or `evaluator.benchmarks.0.`"""
    found: list[tuple[str, RewardConfig]] = [("", config.reward)]
    for index, environment in enumerate(config.environments.train):
        if has_own_reward(environment):
            found.append((f"{ENVIRONMENTS}.{index}.", own_reward(config.reward, environment.reward)))
    for index, each in enumerate(config.evaluator.benchmarks):
        if brings_reward(each):
            found.append((f"{BENCHMARKS}.{index}.", own_reward(config.reward, each.reward)))
    return found
