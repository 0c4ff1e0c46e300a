"""Whether the rewards of a configuration agree: one by name or a sum of parts, with labels of their own."""

from collections.abc import Iterator
from typing import Any

from areal_like.config.built_in import BUILT_IN, SANDBOXED
from areal_like.config.checks.built_in_code import parameters_of
from areal_like.config.dotted_path import value_at
from areal_like.config.problems import Problem
from areal_like.config.sections.reward import REWARD_MODEL, REWARD_OF_TASK, SCORE_PART, NamedReward, named_rewards
from areal_like.config.task_names import task_as_path


def rewards_in(values: dict[str, Any]) -> list[NamedReward]:
    """The rewards of a configuration, given as its values; also those that it cannot have together."""
    reward = values.get("reward")
    if not isinstance(reward, dict):
        return []
    name, args, parts = (reward.get(each) for each in ("name", "args", "parts"))
    by_name = named_rewards(name, args, [])
    return by_name + (named_rewards(None, {}, parts) if isinstance(parts, list) else [])


def reward_problems(values: dict[str, Any]) -> Iterator[Problem]:
    reward, rewards = values.get("reward"), rewards_in(values)
    if not isinstance(reward, dict):
        return
    if reward.get("parts") and reward.get("name") is not None:
        yield Problem(
            "reward.parts",
            f"is a sum of rewards, but reward.name={reward['name']} names one; keep one of them (reward.name=null)",
            also=("reward.name",),
        )
    elif reward.get("parts") and reward.get("args"):
        remedy = "give each part its own, as `args` of the part"
        yield Problem("reward.args", f"are arguments of reward.name, but there is reward.parts; {remedy}")
    yield from _time_limits(reward.get("timeout_s"), rewards)
    if not _has_task(values):
        for each in (each for each in rewards if each.name == REWARD_OF_TASK):
            yield Problem(f"{each.section}.name", "is the reward of the task, but task.name is null; name a reward")
    yield from _labels([each for each in rewards if each.label])
    yield from _models([each for each in rewards if each.name == REWARD_MODEL])


def _time_limits(timeout_s: Any, rewards: list[NamedReward]) -> Iterator[Problem]:
    """A program that takes too long is wrong; a reward that does is an error."""
    for each in rewards:
        if each.name in SANDBOXED:
            default = parameters_of(BUILT_IN["reward"][each.name])["timeout_s"].default
            own_s = each.args.get("timeout_s", float(default))
            if isinstance(own_s, int | float) and isinstance(timeout_s, int | float) and own_s >= timeout_s:
                reason = f"{own_s:g} s for the tests of an answer must be less than reward.timeout_s={timeout_s:g}"
                remedy = "or slow programs are errors instead of wrong; raise reward.timeout_s, or lower this"
                yield Problem(f"{each.section}.args.timeout_s", f"{reason}, {remedy}", also=("reward.timeout_s",))


def _has_task(values: dict[str, Any]) -> bool:
    """Whether there is a task, by its key or as the path of the training data."""
    task, path = value_at(values, "task.name"), value_at(values, "train_dataset.path")
    return task is not None or task_as_path(path) is not None


def _labels(parts: list[NamedReward]) -> Iterator[Problem]:
    first: dict[str, NamedReward] = {}
    for part in parts:
        key = f"{part.section}.label"
        if part.label == SCORE_PART:
            yield Problem(key, f"{SCORE_PART!r} is the name of what evaluations report; choose another label")
        elif (other := first.setdefault(part.label, part)) is not part:
            yield Problem(
                key, f"{part.label!r} is the label of {other.section} as well; give one of them another label"
            )


def _models(models: list[NamedReward]) -> Iterator[Problem]:
    for model in models[1:]:
        yield Problem(f"{model.section}.name", "a run serves one reward model, and another part names one already")
