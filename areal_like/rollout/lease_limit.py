"""How long a worker may have a group of answers before the controller takes it back."""

import math

from areal_like.config.benchmarks import every_reward
from areal_like.config.experiment import GRPOConfig
from areal_like.config.verifiers import package_task

AGENT = "agent"
LIMITS = "rollout.request_timeout, reward.timeout_s; of agents and environments their timeout_s"
"""The keys that it comes from."""


def lease_limit_s(config: GRPOConfig, samples: int) -> float:
    """`samples`: most that all workers have at a time. Those of one worker wait for each other where only so many
    programs or episodes run at once."""
    workers = config.rollout.num_episode_workers
    samples = math.ceil(samples / workers) if isinstance(workers, int) else samples
    played_s = [config.rollout.request_timeout]
    if AGENT in (config.workflow.name, *(each.workflow.name for each in config.environments.train)):
        played_s.append(math.ceil(samples / config.agent.max_concurrent) * config.agent.timeout_s)
    ids = (*(each.id for each in config.environments.train), *(each.id for each in config.evaluator.benchmarks))
    if any(each is not None and package_task(each) for each in ids):
        played_s.append(math.ceil(samples / config.environments.max_concurrent) * config.environments.timeout_s)
    return max(played_s) + max(each.timeout_s for _, each in every_reward(config))
