"""How long a worker may have a group of answers before the controller takes it back."""

import math

from areal_like.config.benchmarks import benchmark_task, every_reward
from areal_like.config.environments import TEXT_ENVIRONMENT, environment_task
from areal_like.config.experiment import GRPOConfig
from areal_like.config.text_environments import CALL_TIMEOUT_S, MAX_PROCESSES, MAX_TURNS
from areal_like.config.verifiers import package_task

AGENT, PLAYER = "agent", "text_environment"
LIMITS = "rollout.request_timeout, reward.timeout_s; of agents and environments their own limits"
"""The keys that it comes from."""


def lease_limit_s(config: GRPOConfig, samples: int, largest_group: int) -> float:
    """`samples`: most that all workers have at a time, in groups of up to `largest_group`. Those of one worker wait for
    each other where only so many programs or episodes run at once."""
    workers = config.rollout.num_episode_workers
    samples = math.ceil(samples / workers) if isinstance(workers, int) else samples
    played_s = [config.rollout.request_timeout]
    if AGENT in (config.workflow.name, *(each.workflow.name for each in config.environments.train)):
        played_s.append(math.ceil(samples / config.agent.max_concurrent) * config.agent.timeout_s)
    ids = (*(each.id for each in config.environments.train), *(each.id for each in config.evaluator.benchmarks))
    if any(each is not None and package_task(each) for each in ids):
        at_once = config.environments.max_concurrent
        group = min(largest_group, at_once)  # which is played as a whole
        played_s.append(math.ceil(samples / (at_once // group * group)) * config.environments.timeout_s)
    played_s += [math.ceil(samples / processes) * limit_s for processes, limit_s in _text_environments(config)]
    return max(played_s) + max(each.timeout_s for _, each in every_reward(config))


def _text_environments(config: GRPOConfig) -> list[tuple[int, float]]:
    """How many conversations of them a worker holds at a time, and how long each may last. A class of the user's own is
    known by its workflow alone: what it has is found out where it is imported."""
    main, trained = config.workflow, config.environments.train
    players = [each.args for each in (main, *(each.workflow for each in trained)) if each.name == PLAYER]
    others = [environment_task(each) for each in trained if each.workflow.name != PLAYER]
    others += map(benchmark_task, config.evaluator.benchmarks)
    if main.name != PLAYER and any(task is not None and task.name == TEXT_ENVIRONMENT for task in others):
        players.append({})
    return [
        (
            args.get("max_processes", MAX_PROCESSES),
            args.get("timeout_s") or args.get("max_turns", MAX_TURNS) * args.get("call_timeout_s", CALL_TIMEOUT_S),
        )
        for args in players
    ]
