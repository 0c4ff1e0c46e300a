"""The sandbox in which rewards and tools run what a model wrote: that it works here, and what it does not hold."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.argument_types import inline_tools
from areal_like.config.benchmarks import benchmark_task, every_reward
from areal_like.config.checks.sandboxed_code import runs_programs
from areal_like.config.dotted_path import value_of
from areal_like.config.environments import LIST, REASONING_GYM, NamedTask, environment_task
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.config.sections.data import WorkflowSourceConfig
from areal_like.config.sections.evaluation import BenchmarkConfig
from areal_like.config.sections.reward import REWARD_OF_TASK, RewardConfig, configured_rewards
from areal_like.data.tasks.evaluating_scorers import evaluating_puzzles
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
        folder, other = loaded.folder, other_sandbox(own.sandbox, place)
        for reward in configured_rewards(own):
            if runs_programs(reward.name, folder) and (reason := here.why_no_sandbox(own.sandbox)):
                message = f"{reward.name} runs programs of answers in a sandbox: {reason}; {other}"
                yield Problem(f"{place}{reward.section}.name", message)
        if (found := _task_of(config, place, own)) is not None:
            key, task = found
            if (how := sandboxed_reward_of(task, folder)) and (reason := here.why_no_sandbox(own.sandbox)):
                yield Problem(f"{place}{key}", f"{how} in a sandbox: {reason}; {other}")
    for key, workflow in _workflows(config):
        yield from _of_tools(key, workflow, config.reward.sandbox, here)


def _workflows(config: GRPOConfig) -> Iterator[tuple[str, WorkflowSourceConfig]]:
    yield "workflow", config.workflow
    for index, each in enumerate(config.environments.train):
        yield f"{LIST}.{index}.workflow", each.workflow


def _of_tools(key: str, workflow: WorkflowSourceConfig, kind: str, here: HostInfo) -> Iterator[Problem]:
    """Of a workflow that runs programs."""
    default = "python" if workflow.name == "tool_integrated" else None
    if "python" not in inline_tools(workflow.args.get("tools", default)):
        return
    own = workflow.args.get("sandbox")
    if own is not None and own not in BACKENDS:
        yield Problem(f"{key}.args.sandbox", f"{own!r} is no kind of sandbox; there are {', '.join(BACKENDS)}")
    elif reason := here.why_no_sandbox(own or kind):
        remedy = other_sandbox(kind) if own is None else f"{key}.args.sandbox names another kind (docs/sandbox.md)"
        yield Problem(f"{key}.name", f"{workflow.name} runs programs of answers in a sandbox: {reason}; {remedy}")


def sandboxed_reward_of(task: NamedTask, folder: Path) -> str:
    """What the task's own reward does in a sandbox; "" if it needs none."""
    if task.name == REASONING_GYM:
        puzzle = task.args.get("dataset")
        return f"the scorer of {puzzle} evaluates answers" if puzzle in evaluating_puzzles() else ""
    return f"{task.name} runs programs of answers" if runs_programs(task.name, folder) else ""


def _task_of(config: GRPOConfig, place: str, own: RewardConfig) -> tuple[str, NamedTask] | None:
    """The task whose own reward scores the answers, with its key."""
    rewards = configured_rewards(own)
    if rewards and REWARD_OF_TASK not in {each.name for each in rewards}:
        return None
    if not place:
        task = config.task
        return None if task.name is None else ("task.name", NamedTask(task.name, dict(task.args)))
    source = value_of(config, place.removesuffix("."))
    if isinstance(source, BenchmarkConfig):
        named = benchmark_task(source)
        return None if named is None else ("task.name" if source.id is None else "id", named)
    named = environment_task(source)
    return None if named is None else ("id", named)


def sandbox_weaknesses(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    """Of each kind once."""
    if isinstance(config, GRPOConfig):
        first: dict[str, str] = {}
        for place, own in every_reward(config):
            first.setdefault(own.sandbox, f"{place}reward.sandbox")
        for kind, key in first.items():
            for weakness in BACKENDS[kind].weaknesses():
                yield Problem(key, f"{kind} is the weaker sandbox: {weakness}")
