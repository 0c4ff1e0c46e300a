"""Rewards by name: built-in ones, the task's own and the user's. They run in a child process."""

from pathlib import Path
from typing import Any, NamedTuple

from areal_like.data.tasks import make_task
from areal_like.data.user_code import SearchFolders, config_error, load_named, make_object
from areal_like.rollout.episodes.rewards.base import Reward, RewardError, RewardFunction

__all__ = ["Reward", "RewardError", "RewardFunction", "RewardSpec", "find_reward"]


class RewardSpec(NamedTuple):
    """The reward of the configuration: everything that a child process needs to import it."""

    name: str | None
    args: dict[str, Any]
    task: str | None
    task_args: dict[str, Any]
    folder: str
    cwd: str


def find_reward(spec: RewardSpec) -> tuple[RewardFunction, dict[str, Any]] | None:
    """The function and the arguments of each call; None if neither `reward.name` nor the task gives a reward.

    A class is created once with the arguments, and its instance is called.
    """
    places = SearchFolders(Path(spec.folder), Path(spec.cwd))
    name, args = spec.name, spec.args
    if name is None:
        task = None if spec.task is None else make_task(spec.task, spec.task_args, places)
        reward = getattr(task, "reward", None)
        return None if reward is None else (reward, args)
    reward = load_named("reward", "reward.name", name, places)
    if isinstance(reward, type):
        reward, args = make_object("reward.name", "reward.args", name, reward, args), {}
    if not callable(reward):
        raise config_error("reward.name", f"{name} is {type(reward).__name__}; a reward must be a function")
    return reward, args
