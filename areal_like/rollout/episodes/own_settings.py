"""What benchmarks and environments have of their own: rewards, workflows and sampling."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.benchmarks import SPLIT, benchmark_task, brings_reward
from areal_like.config.environments import (
    LIST,
    NamedTask,
    environment_task,
    has_own_reward,
    names_of,
    own_reward,
    place_of,
)
from areal_like.config.sections.reward import RewardConfig, reward_model
from areal_like.config.task_names import task_name
from areal_like.config.verifiers import is_played_by_itself
from areal_like.data.datasets import Datasets, environments_of, item_errors
from areal_like.data.tasks.verifiers import hosted_package
from areal_like.data.user_code import SearchFolders, config_error
from areal_like.process.identity import REWARD
from areal_like.process.patience import patience_s
from areal_like.rollout.episodes.rewards import RewardSpec, reward_spec
from areal_like.rollout.episodes.rewards.limits import reward_limits
from areal_like.rollout.episodes.rewards.pool import RewardPool
from areal_like.rollout.episodes.rewards.sum_pool import pool_kind
from areal_like.rollout.episodes.runner import OwnSettings
from areal_like.rollout.episodes.workflows import AGENT, Workflow, make_workflow, workflow_of
from areal_like.rollout.episodes.workflows.agent import Agent
from areal_like.rollout.episodes.workflows.verifiers import VerifiersEnvironment


class Rewards(NamedTuple):
    """That of the experiment, and those of benchmarks and environments by their place."""

    main: RewardPool
    own: dict[str, RewardPool]

    @property
    def available(self) -> dict[str, RewardPool]:
        return {place: each for place, each in self.own.items() if each.is_available}

    async def ready(self, datasets: Datasets, unscored: Collection[str] = ()) -> None:
        """Waits until all are imported. Raises ConfigError if one cannot be, or a row lacks what it needs. `unscored`:
        places of environments that score their answers themselves."""
        for place, each in self.own.items():
            with item_errors(datasets.section_of(place)):
                await each.ready(datasets.of(place).rows[0])
        scored = {*self.available, *unscored}
        others = [rows for place, rows in datasets.environments.items() if place not in scored]
        await self.main.ready((others or [datasets.train])[0].rows[0])


def reward_pools(config: Any, places: SearchFolders, processes: int | None = None) -> Rewards:
    """`processes`: the number for each that does not set its own; None: that of the experiment."""

    def pool(reward: RewardConfig, spec: RewardSpec) -> RewardPool:
        waits_s = config.rollout.setup_timeout if reward_model(reward) is None else patience_s(config, REWARD)
        count = reward.processes if processes is None or reward.processes != "auto" else processes
        return pool_kind(spec)(
            *(spec, reward.timeout_s, config.rollout.request_retries, waits_s),
            config.reward.processes if count == "auto" else count,
            reward_limits(reward),
        )

    own = {place: pool(*each) for place, each in own_rewards(config, places).items()}
    return Rewards(pool(config.reward, main_reward(config, places)), own)


def main_reward(config: Any, places: SearchFolders) -> RewardSpec:
    """That of the experiment."""
    return reward_spec(config.reward, task_name(config), config.task.args, *map(Path, places))


def own_rewards(config: Any, places: SearchFolders) -> dict[str, tuple[RewardConfig, RewardSpec]]:
    """Those of environments and benchmarks that have one, by their place: `environment/NAME`, `benchmark/NAME`."""

    def found(own: Any, task: NamedTask | None) -> tuple[RewardConfig, RewardSpec]:
        reward, (name, args) = own_reward(config.reward, own), task or (None, {})
        return reward, reward_spec(reward, name, args, *map(Path, places))

    trained = environments_of(config)
    rewards = {
        place_of("train", name): found(each.reward, environment_task(each))
        for name, each in zip(names_of(trained), trained, strict=True)
        if has_own_reward(each)
    }
    for each in config.evaluator.benchmarks:
        if brings_reward(each):
            rewards[f"{SPLIT}{each.name}"] = found(each.reward, benchmark_task(each))
    return rewards


def environment_settings(config: Any, places: SearchFolders, main: Workflow) -> dict[str, OwnSettings]:
    """Also of benchmarks, by their place. `main` is the workflow of the experiment. A worker has one agent, with one
    limit of those that run at the same time."""
    agent = main if isinstance(main, Agent) else None
    trained, settings = environments_of(config), {}
    played: dict[str, VerifiersEnvironment] = {}
    for index, (name, each) in enumerate(zip(names_of(trained), trained, strict=True)):
        with item_errors(f"{LIST}.{index}"):
            own, workflow = each.workflow.name, _of_verifiers(environment_task(each), config, places, played)
            if own == AGENT:
                workflow = agent = agent or Agent.configured(config.agent, places)
            elif own is not None:
                workflow = make_workflow(own, dict(each.workflow.args), places, config.agent)
        sampling = {} if each.max_new_tokens is None else {"max_new_tokens": each.max_new_tokens}
        evaluated = sampling if config.evaluator.gconfig.max_new_tokens is None else {}
        settings[place_of("train", name)] = OwnSettings(workflow, sampling, evaluated)
    for benchmark in config.evaluator.benchmarks:
        if (workflow := _of_verifiers(benchmark_task(benchmark), config, places, played)) is not None:
            settings[f"{SPLIT}{benchmark.name}"] = OwnSettings(workflow)
    return settings


def waits_for_others(datasets: Datasets, workflow: Workflow, own: dict[str, OwnSettings]) -> bool:
    """Whether a group may wait for the end of another one, in any part of the run."""
    splits = [datasets.train, *([] if datasets.valid is None else [datasets.valid]), *datasets.benchmarks.values()]
    rows = [each.rows[0] for each in (*splits, *datasets.environments.values())]
    used = [*(workflow_of(each, workflow) for each in rows), *(each.workflow for each in own.values())]
    return any(getattr(each, "waits_for_others", False) for each in used)


def _of_verifiers(
    task: NamedTask | None, config: Any, places: SearchFolders, played: dict[str, VerifiersEnvironment]
) -> Workflow | None:
    """Equal environments are one."""
    if task is None or not is_played_by_itself(task.name):
        return None
    package = hosted_package(task.name, places=places, limit_s=config.rollout.setup_timeout, **task.args)
    if package.key not in played:
        played[package.key] = VerifiersEnvironment(package, config.environments, config.agent)
    return played[package.key]


async def close_environments(own: Mapping[str, OwnSettings]) -> None:
    played = {id(each.workflow): each.workflow for each in own.values()}
    await asyncio.gather(*(each.close() for each in played.values() if isinstance(each, VerifiersEnvironment)))


def scored_by_themselves(own: Mapping[str, OwnSettings]) -> list[str]:
    return [place for place, each in own.items() if isinstance(each.workflow, VerifiersEnvironment)]


def check_rewards(
    config: Any, rewards: Rewards, workflow: Workflow, own: dict[str, OwnSettings], datasets: Datasets
) -> None:
    """Raises ConfigError if a workflow needs a reward and there is none."""
    if rewards.main.is_available:
        return
    for index, (place, each) in enumerate(own.items()):
        if place.startswith(SPLIT):  # played by an environment, which scores it
            continue
        used = each.workflow or workflow_of(datasets.of(place).rows[0], workflow)
        if place not in rewards.available and getattr(used, "needs_reward", False):
            message = "is null, and neither its task nor reward.name of the experiment gives one: name a reward"
            raise config_error(f"{LIST}.{index}.reward.name", f"{message} (docs/rewards.md)")
    train_workflow = workflow_of(datasets.train.rows[0], workflow)
    if not environments_of(config) and getattr(train_workflow, "needs_reward", False):
        reason = f"task {task_name(config)} has none" if task_name(config) else "there is no task"
        raise config_error("reward.name", f"is null, and {reason}: name a reward (docs/rewards.md)")
