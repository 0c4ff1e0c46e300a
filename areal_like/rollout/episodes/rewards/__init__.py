"""Rewards by name: built-in ones, the task's own and the user's. They run in a child process."""

from pathlib import Path

from areal_like.config.sections.reward import REWARD_OF_TASK, NamedReward
from areal_like.data.tasks import make_task
from areal_like.data.user_code import SearchFolders, config_error, load_named, make_object
from areal_like.rollout.episodes.rewards.base import Reward, RewardCall, RewardError, RewardFunction
from areal_like.rollout.episodes.rewards.spec import RewardSpec, reward_spec
from areal_like.rollout.episodes.rewards.weighted_sum import Part, PartialSum, WeightedSum

__all__ = ["Reward", "RewardError", "RewardFunction", "RewardSpec", "load_reward", "reward_spec"]


def load_reward(spec: RewardSpec) -> RewardCall | WeightedSum | None:
    """Imports the reward; None if neither `reward.name`, `reward.parts` nor the task gives one."""
    places = SearchFolders(Path(spec.folder), Path(spec.cwd))
    if spec.parts:
        return _load_sum(spec, places)
    if spec.rewards:
        return _load(spec.rewards[0], spec, places)
    reward = _of_task(spec, places)
    return None if reward is None else RewardCall(reward, spec.title, spec.args)


def _load_sum(spec: RewardSpec, places: SearchFolders) -> WeightedSum:
    """Of parts of both kinds those that wait; `only` loads the others, for processes of their own."""
    parts = {
        index: Part(each.label, each.weight, _load(each, spec, places)) for index, each in spec.loaded_rewards.items()
    }
    waiting = {index: part for index, part in parts.items() if part.call.is_async}
    if 0 < len(waiting) < len(parts):
        return PartialSum(waiting, [index for index in parts if index not in waiting])
    return PartialSum(parts) if spec.only else WeightedSum(list(parts.values()))


def _of_task(spec: RewardSpec, places: SearchFolders) -> RewardFunction | None:
    task = None if spec.task is None else make_task(spec.task, spec.task_args, places)
    reward: RewardFunction | None = getattr(task, "reward", None)
    return reward


def _load(named: NamedReward, spec: RewardSpec, places: SearchFolders) -> RewardCall:
    """A class is created once with the arguments, and its instance is called."""
    section, name, args = named.section, named.name, named.args
    key, args_key = f"{section}.name", f"{section}.args"
    if name == REWARD_OF_TASK:
        if (own := _of_task(spec, places)) is None:
            missing = f"{spec.task} has none" if spec.task else "there is no task"
            raise config_error(key, f"is the reward of the task, and {missing}: name a reward (docs/rewards.md)")
        return RewardCall(own, f"the reward of {spec.task}", args, section)
    reward = load_named("reward", key, name, places)
    if isinstance(reward, type):
        reward, args = make_object(key, args_key, name, reward, args), {}
    if not callable(reward):
        raise config_error(key, f"{name} is {type(reward).__name__}; a reward must be a function")
    return RewardCall(reward, name, args, section)
