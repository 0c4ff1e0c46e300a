"""Checks of `evaluator.benchmarks`: names, where rows come from, sampling, tasks and rewards."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_like.config.allocation.grammar import AllocationSyntaxError, parse_server
from areal_like.config.checks.agreement import short_temperature
from areal_like.config.checks.rewards import reward_problems, rewards_in
from areal_like.config.checks.user_code import named_problems, user_code_problems
from areal_like.config.dotted_path import value_at
from areal_like.config.problems import Problem
from areal_like.config.sections.reward import REWARD_MODEL

LIST = "evaluator.benchmarks"


def benchmarks(get: Callable[[str], Any]) -> Iterator[Problem]:
    """Each has a name of its own, and rows from one place."""
    names: dict[str, str] = {}
    for index, benchmark in enumerate(get(LIST) or ()):
        place, name, task = f"{LIST}.{index}", benchmark["name"], benchmark["task"]["name"]
        if name in names:
            yield Problem(f"{place}.name", f"{name!r} is the name of {names[name]} as well; give each its own")
        names.setdefault(name, place)
        if not benchmark["path"] and task is None:
            yield Problem(f"{place}.path", "is empty; set a dataset here, or a task in task.name")
        if benchmark["path"] and task is not None:
            yield Problem(f"{place}.task.name", f"is {task}, but rows come from path={benchmark['path']}; keep one")
        if problem := short_temperature(f"{place}.gconfig", benchmark["gconfig"]["temperature"]):
            yield problem


def evaluation_servers(get: Callable[[str], Any]) -> Iterator[Problem]:
    if (backend := get("evaluator.backend")) is not None:
        try:
            parse_server(backend)
        except AllocationSyntaxError as fault:
            yield Problem("evaluator.backend", str(fault))


def benchmark_code(values: dict[str, Any], folder: Path) -> Iterator[Problem]:
    """Tasks and rewards of benchmarks by name."""
    for index, benchmark in enumerate(value_at(values, LIST) or ()):
        limit_s = benchmark["reward"]["timeout_s"] or value_at(values, "reward.timeout_s")
        own = {"reward": {**benchmark["reward"], "timeout_s": limit_s}}
        needs_reward = not rewards_in(own) and not rewards_in(values)
        found = [*named_problems("task", benchmark["task"], folder, needs_reward)]
        found += [*reward_problems({**own, "task": benchmark["task"]}), *user_code_problems(own, folder)]
        if any(reward.name == REWARD_MODEL for reward in rewards_in(own)):
            found.append(Problem("reward.name", "a run serves the reward model of its own reward; set it there"))
        for problem in found:
            keys = [f"{LIST}.{index}.{key}" for key in (problem.key, *problem.also)]
            yield replace(problem, key=keys[0], also=tuple(keys[1:]))
