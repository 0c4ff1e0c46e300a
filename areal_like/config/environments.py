"""Environments of `environments.train`: their names, tasks, datasets, rewards and frequencies."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from areal_like.config.built_in import TASKS
from areal_like.config.sections.data import DatasetConfig, RowSourceConfig, paths_of
from areal_like.config.sections.environments import EnvironmentConfig
from areal_like.config.sections.reward import OwnRewardConfig, RewardConfig, configured_rewards
from areal_like.config.verifiers import is_played_by_itself, package_task, task_arguments

LIST = "environments.train"
PREFIX = "environment/"
"""Of the places of environments, before their names. Those of other rows are their splits."""
REASONING_GYM = "reasoning_gym"
TEXT_ENVIRONMENT, NUM_ROWS = "areal_like.data.tasks.text_environment:TextEnvironment", "num_rows"
PLAYED = ("gymnasium", "openenv", "textarena")
"""Families of text environments, `FAMILY:NAME`."""


class NamedTask(NamedTuple):
    name: str
    args: dict[str, Any]


def task_by_id(name: str | None, args: Mapping[str, Any], python: str | None = None) -> NamedTask | None:
    """The task that the `id` of an environment names; `python` is for those of verifiers."""
    if name is None:
        return None
    if (package := package_task(name)) is not None:
        return NamedTask(package, task_arguments(args, python))
    family, _, puzzle = name.partition(":")
    if family == REASONING_GYM and puzzle:
        return NamedTask(family, {"dataset": puzzle, **args})
    if family in PLAYED and puzzle:
        own = {each: value for each, value in args.items() if each != NUM_ROWS}
        count = {NUM_ROWS: args[NUM_ROWS]} if NUM_ROWS in args else {}
        return NamedTask(TEXT_ENVIRONMENT, {"name": name, "args": own, **count})
    return NamedTask(name, dict(args))


def environment_task(environment: EnvironmentConfig) -> NamedTask | None:
    """None: its rows are those of `path`."""
    path = environment.path
    is_task = environment.id is None and isinstance(path, str) and path in TASKS
    return NamedTask(str(path), {}) if is_task else task_by_id(environment.id, environment.args, environment.python)


def environment_name(name: str | None, task_id: str | None, path: str | Sequence[str]) -> str:
    """`chain_sum` of `reasoning_gym:chain_sum`, `gsm8k` of `openai/gsm8k`, `wordle` of `owner/wordle@1.0`, `train` of
    `data/train.jsonl`."""
    if name is not None:
        return name
    if task_id is not None:
        return task_id.rpartition(":")[2].rpartition("/")[2].partition("@")[0]
    paths = paths_of(path if isinstance(path, str) else list(path))
    return PurePosixPath(paths[0]).stem if paths else ""


def place_of(split: str, environment: str) -> str:
    """The name under which the settings of an environment are kept, or of a split whose rows are of no environment."""
    return f"{PREFIX}{environment}" if environment else split


def names_of(environments: Sequence[EnvironmentConfig]) -> list[str]:
    return [environment_name(each.name, each.id, each.path) for each in environments]


def frequencies(mix: Any, environments: Sequence[EnvironmentConfig]) -> list[float] | None:
    """Relative, one for each environment; None: in rotation."""
    if mix.probabilities is not None:
        return list(mix.probabilities)
    ratios = [each.ratio for each in environments]
    return None if ratios.count(None) == len(ratios) else [1.0 if each is None else each for each in ratios]


def rows_of(environment: EnvironmentConfig, all_rows: DatasetConfig) -> DatasetConfig:
    """Its rows as a dataset, with the limit of all rows where it has none."""
    own = {field.name: getattr(environment, field.name) for field in fields(RowSourceConfig)}
    limit = all_rows.max_length if environment.max_length is None else environment.max_length
    return DatasetConfig(**{**own, "max_length": limit})


def has_own_reward(environment: EnvironmentConfig) -> bool:
    """By name or parts, or from its task. An environment of verifiers scores its answers itself."""
    task = environment_task(environment)
    return has_task_reward(task) or bool(configured_rewards(environment.reward))


def has_task_reward(task: NamedTask | None) -> bool:
    return task is not None and not is_played_by_itself(task.name)


def own_reward(reward: RewardConfig, own: OwnRewardConfig) -> RewardConfig:
    """Its name, arguments and parts, and the limits of the experiment's where it sets none."""
    return replace(reward, **{name: value for name, value in vars(own).items() if value is not None or name == "name"})
