"""The sandbox in which rewards run what a model wrote: that it works here, and what it does not hold."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

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
    kind = config.reward.sandbox
    for reward in configured_rewards(config.reward):
        if reward.name in SANDBOXED and (reason := here.why_no_sandbox(kind)):
            other = next(each for each in SANDBOXES if each != kind)
            weaker = ", the weaker one," if other != SANDBOXES[0] else ""
            remedy = f"reward.sandbox={other}{weaker} has other needs (docs/sandbox.md)"
            yield Problem(
                f"{reward.section}.name", f"{reward.name} runs programs of answers in a sandbox: {reason}; {remedy}"
            )


def sandbox_weaknesses(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    if isinstance(config, GRPOConfig):
        for weakness in BACKENDS[config.reward.sandbox].weaknesses():
            yield Problem("reward.sandbox", f"{config.reward.sandbox} is the weaker sandbox: {weakness}")
