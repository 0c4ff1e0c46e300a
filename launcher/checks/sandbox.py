"""The sandbox in which rewards run what a model wrote: that it works here, and what it does not hold."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.benchmarks import every_reward
from areal_like.config.built_in import SANDBOXED
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.config.sections.reward import SANDBOXES, configured_rewards
from areal_like.process.sandbox.sandbox import BACKENDS
from launcher.plan.host import HostInfo

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def sandbox_problems(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    """A program is run in it, where the workers run on this machine."""
    if not isinstance(config, GRPOConfig) or config.cluster.type != "local":
        return
    for place, own in every_reward(config):
        kind = own.sandbox
        for reward in configured_rewards(own):
            if reward.name in SANDBOXED and (reason := here.why_no_sandbox(kind)):
                other = next(each for each in SANDBOXES if each != kind)
                weaker = ", the weaker one," if other != SANDBOXES[0] else ""
                remedy = f"{place}reward.sandbox={other}{weaker} has other needs (docs/sandbox.md)"
                message = f"{reward.name} runs programs of answers in a sandbox: {reason}; {remedy}"
                yield Problem(f"{place}{reward.section}.name", message)


def sandbox_weaknesses(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    """Of each kind once."""
    if isinstance(config, GRPOConfig):
        first: dict[str, str] = {}
        for place, own in every_reward(config):
            first.setdefault(own.sandbox, f"{place}reward.sandbox")
        for kind, key in first.items():
            for weakness in BACKENDS[kind].weaknesses():
                yield Problem(key, f"{kind} is the weaker sandbox: {weakness}")
