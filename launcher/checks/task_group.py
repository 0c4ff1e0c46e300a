"""Values that a group brought with its task, and that stay where the user names another task or other rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.allocation.models import generates
from areal_like.config.checks.user_code import task_has_reward
from areal_like.config.problems import Problem
from areal_like.config.sections.data import paths_of
from launcher.plan.changes import BODY, OVERRIDE, is_set_by_group

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

TASKS = "task"
"""The folder of the groups that choose a task."""


def reward_warnings(loaded: "Loaded") -> Iterator[Problem]:
    """The reward of a group, in place of that of the user's task."""
    if not generates(loaded.config):
        return
    task, reward, origin = loaded.config.task.name, loaded.config.reward.name, loaded.origin("reward.name")
    if task is None or reward in (None, task) or not is_set_by_group(loaded, "reward.name"):
        return
    if loaded.origin("task.name").kind in (BODY, OVERRIDE) and task_has_reward(task, loaded.folder):
        kept = f"is {reward} ({origin.where}), so the reward of {task} has no effect"
        yield Problem("reward.name", f"{kept}; reward.name=null uses it")


def length_warnings(loaded: "Loaded") -> Iterator[Problem]:
    """The length of the rows of a task, as the limit of other rows."""
    data, key = loaded.config.train_dataset, "train_dataset.max_length"
    origin = loaded.origin(key)
    if data.max_length is None or data.fake is not None or data.path in ("", loaded.get("task.name")):
        return
    if is_set_by_group(loaded, key) and Path(origin.where).parent.name == TASKS:
        rows = f"the rows come from {' and '.join(paths_of(data.path))}: longer ones are left out"
        yield Problem(key, f"is {data.max_length} ({origin.where}), and {rows}; give it a value, or null")
