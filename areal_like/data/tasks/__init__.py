"""Tasks by name: built-in ones, and the user's own."""

from typing import Any

from areal_like.config.verifiers import is_played_by_itself
from areal_like.data.tasks.base import TEST, TRAIN, RewardValue, Row, Task
from areal_like.data.tasks.text_environment import NUM_ROWS, TextEnvironment, is_played
from areal_like.data.user_code import (
    SearchFolders,
    check_arguments,
    check_call,
    config_error,
    load_named,
    make_object,
)

__all__ = ["TEST", "TRAIN", "RewardValue", "Row", "Task", "make_task"]


def make_task(name: str, args: dict[str, Any], places: SearchFolders, limit_s: float | None = None) -> Task:
    """Creates the task with its arguments; of a text environment the task that plays it, which has these arguments.
    `limit_s`: to load an environment of verifiers."""
    if is_played_by_itself(name):
        from areal_like.data.tasks.verifiers import EnvironmentRows, hosted_package

        return EnvironmentRows(hosted_package(name, places=places, limit_s=limit_s, **args))
    kind = load_named("task", "task.name", name, places)
    if is_played(kind):
        check_arguments("task.args", name, kind, args)
        return TextEnvironment(name, args, getattr(kind, "num_rows", NUM_ROWS))
    task: Task = make_object("task.name", "task.args", name, kind, args)
    if not callable(getattr(task, "rows", None)):
        raise config_error("task.name", f"{name} is not a task: it has no method rows(split)")
    check_call("task.name", name, task, "rows", "split")
    return task
