"""Checks of `evaluator.benchmarks`: names, where rows come from, sampling, tasks and rewards."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from areal_like.config.allocation.grammar import AllocationSyntaxError, parse_server
from areal_like.config.checks.agreement import short_temperature
from areal_like.config.checks.environments import below, own_parts, task_problems
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
        sources = {"path": benchmark["path"] or None, "id": benchmark["id"], "task.name": task}
        first, *others = [key for key, value in sources.items() if value is not None] or [""]
        if not first:
            yield Problem(f"{place}.path", "is empty; set a dataset here, or a task in id or task.name")
        for key in others:
            yield Problem(f"{place}.{key}", f"is {sources[key]}, but rows come from {first}={sources[first]}; keep one")
        if benchmark["args"] and benchmark["id"] is None:
            yield Problem(f"{place}.args", "are those of the task that id names; those of task.name are in task.args")
        if problem := short_temperature(f"{place}.gconfig", benchmark["gconfig"]["temperature"]):
            yield problem


def evaluated_rows(get: Callable[[str], Any]) -> Iterator[Problem]:
    """No rows are no evaluation."""
    keys = {"evaluator": "valid_dataset=null evaluates none"}
    keys |= {f"{LIST}.{index}": "or leave this benchmark out" for index, _ in enumerate(get(LIST) or ())}
    for place, without in keys.items():
        if get(f"{place}.num_examples") == 0:
            nothing = f"is 0, which evaluates nothing; give 1 or more, -1 for all; {without}"
            yield Problem(f"{place}.num_examples", nothing)


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
        found += task_problems(benchmark["id"], benchmark["args"], folder, needs_reward, benchmark["python"])
        found += own_parts(benchmark["id"], benchmark["reward"], {})
        task = {"name": benchmark["id"]} if benchmark["task"]["name"] is None else benchmark["task"]
        found += [*reward_problems({**own, "task": task}), *user_code_problems(own, folder)]
        if any(reward.name == REWARD_MODEL for reward in rewards_in(own)):
            found.append(Problem("reward.name", "a run serves the reward model of its own reward; set it there"))
        yield from below(f"{LIST}.{index}", found)
