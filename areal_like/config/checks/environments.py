"""Checks of `environments`: names, where rows come from, how they are mixed, tasks, rewards and workflows."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_like.config.built_in import TASKS
from areal_like.config.checks.rewards import reward_problems, rewards_in
from areal_like.config.checks.user_code import find_source, named_problems, user_code_problems
from areal_like.config.dotted_path import value_at
from areal_like.config.environments import LIST, environment_name, task_by_id
from areal_like.config.problems import Problem
from areal_like.config.sections.curriculum import BY_ENVIRONMENT
from areal_like.config.sections.environments import NAME_HINT, NAME_PATTERN
from areal_like.config.sections.reward import REWARD_MODEL
from areal_like.config.suggest import nearest
from areal_like.config.verifiers import FAMILY, package_of, package_task

ValueGetter = Callable[[str], Any]
RATES = "environments.mix.probabilities"


def environments(get: ValueGetter) -> Iterator[Problem]:
    """Each has a name of its own, and rows from one place; training rows come from nowhere else."""
    trained = get(LIST) or []
    names: dict[str, str] = {}
    for index, each in enumerate(trained):
        place = f"{LIST}.{index}"
        yield from _source(place, each)
        name = environment_name(each["name"], each["id"], each["path"])
        if name in names:
            yield Problem(f"{place}.name", f"{name!r} is the name of {names[name]} as well; give each its own")
        elif name and not re.fullmatch(NAME_PATTERN, name):
            yield Problem(f"{place}.name", f"would be {name!r}, which is not {NAME_HINT}; set it")
        names.setdefault(name, place)
        longest, own = get("gconfig.max_new_tokens"), each["max_new_tokens"]
        if own is not None and longest is not None and own > longest:
            message = f"is {own}, above gconfig.max_new_tokens={longest}, the limit of all answers; lower it"
            yield Problem(f"{place}.max_new_tokens", message, also=("gconfig.max_new_tokens",))
    task, path = get("task.name"), get("train_dataset.path")
    if trained and task is not None:
        yield Problem("task.name", f"is {task}, but training rows come from {LIST}; leave it out", also=(LIST,))
    if trained and path and path != task:
        message = f"is {path}, but training rows come from {LIST}; name it in path of one of these"
        yield Problem("train_dataset.path", message, also=(LIST,))
    yield from _held_out(get, trained)
    yield from _mix(get, trained)


def _source(place: str, environment: dict[str, Any]) -> Iterator[Problem]:
    name, path = environment["id"], environment["path"]
    if name is None and not path:
        yield Problem(f"{place}.id", "names no rows; set a task here, or a dataset in path")
    elif name is not None and path:
        yield Problem(f"{place}.id", f"is {name}, but rows come from path={path}; keep one")
    elif name is None and environment["args"]:
        yield Problem(f"{place}.args", "are those of the task that id names; leave them out")


def _held_out(get: ValueGetter, trained: list[dict[str, Any]]) -> Iterator[Problem]:
    """Held-out rows of environments are those of their tasks."""
    valid = get("valid_dataset")
    if not trained or not isinstance(valid, dict) or valid.get("path") or valid.get("fake") is not None:
        return
    for index, each in enumerate(trained):
        if each["id"] is None and each["path"] not in TASKS:
            message = f"is empty, which is the held-out rows of all environments, and {LIST}.{index} has none: set a"
            yield Problem("valid_dataset.path", f"{message} path, or valid_dataset=null and evaluator.benchmarks")


def _mix(get: ValueGetter, trained: list[dict[str, Any]]) -> Iterator[Problem]:
    shares, ratios = get(RATES), [index for index, each in enumerate(trained) if each["ratio"] is not None]
    if shares is not None and len(shares) != len(trained):
        message = f"has {len(shares)} entries for {len(trained)} environments; give one for each"
        yield Problem(RATES, message, also=(LIST,))
    elif shares is not None and (sum(shares) <= 0 or min(shares, default=0) < 0):
        yield Problem(RATES, "must each be at least 0, with a sum above 0")
    elif shares is not None and 0 in shares and get("curriculum.type") == BY_ENVIRONMENT:
        yield Problem(RATES, f"has a 0: that environment would never be drawn; leave it out of {LIST}")
    elif shares is not None and 0 in shares and get("environments.mix.stopping_strategy") == "all_exhausted":
        key = "environments.mix.stopping_strategy"
        yield Problem(RATES, f"has a 0: that environment would never be exhausted; set {key}=first_exhausted")
    if shares is not None and ratios:
        yield Problem(f"{LIST}.{ratios[0]}.ratio", f"is set, and so is {RATES}; keep one", also=(RATES,))
    if get("environments.mix.strategy") == "concatenate" and (shares is not None or ratios):
        key = RATES if shares is not None else f"{LIST}.{ratios[0]}.ratio"
        yield Problem(
            key, "is for interleaving; environments.mix.strategy=concatenate uses all rows once", also=(LIST,)
        )


def environment_code(values: dict[str, Any], folder: Path) -> Iterator[Problem]:
    """Tasks, rewards and workflows of environments by name."""
    for index, each in enumerate(value_at(values, LIST) or ()):
        limit_s = each["reward"]["timeout_s"] or value_at(values, "reward.timeout_s")
        own = {"reward": {**each["reward"], "timeout_s": limit_s}, "workflow": each["workflow"]}
        needs_reward = not rewards_in(own) and not rewards_in(values)
        found = [*task_problems(each["id"], each["args"], folder, needs_reward, each["python"])]
        found += own_parts(each["id"], each["reward"], each["workflow"])
        task = {"name": each["id"], "args": each["args"]}
        found += [*reward_problems({**own, "task": task}), *user_code_problems(own, folder)]
        if any(reward.name == REWARD_MODEL for reward in rewards_in(own)):
            found.append(Problem("reward.name", "a run serves the reward model of its own reward; set it there"))
        yield from below(f"{LIST}.{index}", found)


def task_problems(
    name: str | None, args: dict[str, Any], folder: Path, needs_reward: bool, python: str | None = None
) -> Iterator[Problem]:
    """Of an `id`, and of the arguments of its task."""
    task = task_by_id(name, args)
    package = None if task is None else package_of(task.name)
    if python is not None and package is None:
        yield Problem("python", "is for environments of verifiers; leave it out")
    if task is None:
        return
    if package is not None:
        if name == package.name and python is None and find_source(package.module, folder) is None:
            guess = nearest(name, list(TASKS))
            hint = f"; did you mean {guess[0]}?" if guess else "."
            known = f"There are: {', '.join(TASKS)}, and reasoning_gym:NAME; your own is pkg.module:thing or"
            other = f"of verifiers no package {name} is installed; a dataset is named in path"
            yield Problem("id", f"{name!r} is not an environment{hint} {known} file.py:thing; {other}")
        return
    if task.name.startswith(f"{FAMILY}:"):
        yield Problem("id", f"{name!r} names no package; write verifiers:name or verifiers:owner/name")
        return
    for problem in named_problems("task", task._asdict(), folder, needs_reward):
        yield replace(problem, key=_as_id(problem.key), also=tuple(map(_as_id, problem.also)))


def own_parts(name: str | None, reward: dict[str, Any], workflow: dict[str, Any]) -> Iterator[Problem]:
    """An environment of verifiers plays its rows and scores its answers."""
    if name is None or package_task(name) is None:
        return
    for key in ("reward.name", "reward.parts", "workflow.name"):
        section, _, part = key.partition(".")
        if (reward if section == "reward" else workflow).get(part):
            yield Problem(key, f"{name} is an environment of verifiers, which brings its own; leave it out")


def _as_id(key: str) -> str:
    """`task.name` -> `id`, `task.args.x` -> `args.x`."""
    return "id" if key == "task.name" else key.removeprefix("task.")


def below(place: str, problems: list[Problem]) -> Iterator[Problem]:
    """Problems of an item of a list, under its place."""
    for problem in problems:
        key, also = f"{place}.{problem.key}", tuple(f"{place}.{key}" for key in problem.also)
        yield replace(problem, key=key, message=problem.message.replace(f"+{problem.key}=", f"+{key}="), also=also)
