"""Rewards by name: those that come with the package, the task's own, and the user's; they run in a child process."""

from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.sections.data import REWARD_MODEL
from areal_like.data.tasks import make_task
from areal_like.data.tasks.addition import addition_reward
from areal_like.data.user_code import SearchFolders, config_error, is_built_in, load_object, make_object, pick_built_in
from areal_like.rollout.episodes.rewards.base import Reward, RewardError, RewardFunction
from areal_like.rollout.episodes.rewards.model import ModelReward

__all__ = ["BUILT_IN", "Reward", "RewardError", "RewardFunction", "RewardSpec", "find_reward"]

BUILT_IN: dict[str, Any] = {"addition": addition_reward, REWARD_MODEL: ModelReward}


class RewardSpec(NamedTuple):
    """Which reward, as the configuration says it: all that the child needs to know to import it."""

    name: str | None
    args: dict[str, Any]
    task: str | None
    task_args: dict[str, Any]
    folder: str
    cwd: str


def find_reward(wanted: RewardSpec) -> tuple[RewardFunction, dict[str, Any]] | None:
    """The function, and the arguments that each call of it gets; None where neither `reward.name` nor the task has one.

    A class is made with the arguments, once; what it makes is called.
    """
    places = SearchFolders(Path(wanted.folder), Path(wanted.cwd))
    name, args = wanted.name, wanted.args
    if name is None:
        task = None if wanted.task is None else make_task(wanted.task, wanted.task_args, places)
        found = getattr(task, "reward", None)
        return None if found is None else (found, args)
    found = (
        pick_built_in("reward.name", name, BUILT_IN) if is_built_in(name) else load_object("reward.name", name, places)
    )
    if isinstance(found, type):
        found, args = make_object("reward.name", "reward.args", name, found, args), {}
    if not callable(found):
        raise config_error("reward.name", f"{name} is {type(found).__name__}; a reward is a function")
    return found, args
