"""The sandbox in which rewards and tools run what a model wrote: that it works here, and what it does not hold."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.benchmarks import every_reward
from areal_like.config.checks.sandboxed_code import runs_programs
from areal_like.config.dotted_path import value_of
from areal_like.config.environments import LIST, environment_task
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.config.sections.data import WorkflowSourceConfig
from areal_like.config.sections.reward import REWARD_OF_TASK, RewardConfig, configured_rewards
from areal_like.process.sandbox.sandbox import BACKENDS, other_sandbox
from launcher.plan.host import HostInfo

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded


def sandbox_problems(loaded: "Loaded", config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    """A program is run in it, where the workers run on this machine."""
    if not isinstance(config, GRPOConfig) or config.cluster.type != "local":
        return
    for place, own in every_reward(config):
        for key, name in _rewards(config, place, own):
            if runs_programs(name, loaded.file.parent) and (reason := here.why_no_sandbox(own.sandbox)):
                message = f"{name} runs programs of answers in a sandbox: {reason}; {other_sandbox(own.sandbox, place)}"
                yield Problem(f"{place}{key}", message)
    for key, workflow in _workflows(config):
        yield from _of_tools(key, workflow, config.reward.sandbox, here)


def _workflows(config: GRPOConfig) -> Iterator[tuple[str, WorkflowSourceConfig]]:
    yield "workflow", config.workflow
    for index, each in enumerate(config.environments.train):
        yield f"{LIST}.{index}.workflow", each.workflow


def _of_tools(key: str, workflow: WorkflowSourceConfig, kind: str, here: HostInfo) -> Iterator[Problem]:
    """Of a workflow that runs programs."""
    tools = workflow.args.get("tools")
    if workflow.name != "tool_integrated" and not (isinstance(tools, list) and "python" in tools):
        return
    own = workflow.args.get("sandbox")
    if own is not None and own not in BACKENDS:
        yield Problem(f"{key}.args.sandbox", f"{own!r} is no kind of sandbox; there are {', '.join(BACKENDS)}")
    elif reason := here.why_no_sandbox(own or kind):
        remedy = other_sandbox(kind) if own is None else f"{key}.args.sandbox names another kind (docs/sandbox.md)"
        yield Problem(f"{key}.name", f"{workflow.name} runs programs of answers in a sandbox: {reason}; {remedy}")


def _rewards(config: GRPOConfig, place: str, own: RewardConfig) -> Iterator[tuple[str, str]]:
    """Keys and names; the reward of the experiment's task under that of the task."""
    rewards = configured_rewards(own)
    is_of_task = not rewards or REWARD_OF_TASK in {each.name for each in rewards}
    if config.task.name is not None and not place and is_of_task:
        yield "task.name", config.task.name
    if place.startswith(LIST) and is_of_task:
        environment = value_of(config, place.removesuffix("."))
        if (task := environment_task(environment)) is not None:
            yield "id", task.name
    for reward in rewards:
        yield f"{reward.section}.name", reward.name


def sandbox_weaknesses(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    """Of each kind once."""
    if isinstance(config, GRPOConfig):
        first: dict[str, str] = {}
        for place, own in every_reward(config):
            first.setdefault(own.sandbox, f"{place}reward.sandbox")
        for kind, key in first.items():
            for weakness in BACKENDS[kind].weaknesses():
                yield Problem(key, f"{kind} is the weaker sandbox: {weakness}")
