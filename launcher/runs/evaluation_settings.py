"""How two evaluations differ, besides their models: a comparison names it, since it may be the reason."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from areal_like.config.benchmarks import benchmark_task, brings_reward
from areal_like.config.environments import own_reward
from areal_like.config.experiment import GRPOConfig
from areal_like.config.sections.reward import RewardConfig
from areal_like.config.task_names import task_name
from areal_like.rollout.evaluation.answer_folders import VALID
from areal_like.rollout.evaluation.evaluated_rows import evaluated_rows
from areal_like.rollout.sampling import CHOICE

MAX_SHOWN = 6
NOT_SET = "not set"


def differences(name: str, first: Any, second: Any) -> list[str]:
    """Of what both configurations evaluate by this name; a line each."""
    sides = [dict(_settings(config, name)) for config in (first, second) if isinstance(config, GRPOConfig)]
    if len(sides) < 2 or not all(sides):
        return []
    one, other = sides
    keys = [key for key in {**one, **other} if one.get(key, NOT_SET) != other.get(key, NOT_SET)]
    lines = [
        f"{name}: {key} is {_shown(one.get(key, NOT_SET))} in the first and {_shown(other.get(key, NOT_SET))} in the "
        "second"
        for key in keys[:MAX_SHOWN]
    ]
    return [*lines, *([f"{name}: {len(keys) - MAX_SHOWN} more keys differ"] if len(keys) > MAX_SHOWN else [])]


def _settings(config: GRPOConfig, name: str) -> Iterator[tuple[str, Any]]:
    """What decides the answers of a model and their scores; nothing where no such rows are evaluated."""
    rows = next((each for each in evaluated_rows(config, 1) if (each.name or VALID) == name), None)
    if rows is None:
        return
    is_greedy = rows.sampling["greedy"]
    yield "n_samples", rows.n_samples
    yield from ((key, value) for key, value in rows.sampling.items() if not (is_greedy and key in CHOICE))
    yield from _flat("chat_template_args", config.chat_template_args)
    yield from _flat("workflow", {"name": config.workflow.name, "args": config.workflow.args})
    benchmark = next((each for each in config.evaluator.benchmarks if each.name == rows.name), None)
    if benchmark is None or not brings_reward(benchmark):
        task = {"name": task_name(config), "args": config.task.args}
        reward: RewardConfig = config.reward
    else:
        task = dict(zip(("name", "args"), benchmark_task(benchmark) or (), strict=False))
        reward = own_reward(config.reward, benchmark.reward)
    yield from _flat("task", task)
    yield from _flat("reward", {key: asdict(reward)[key] for key in ("name", "args", "parts")})


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _flat(f"{key}.{name}", each)
    elif value is not None and value != []:
        yield key, value


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
