"""Tasks by name: built-in ones, and the user's own."""

from typing import Any

from areal_like.data.tasks.addition import Addition
from areal_like.data.tasks.base import TEST, TRAIN, RewardValue, Row, Task
from areal_like.data.tasks.counting import Counting
from areal_like.data.tasks.reversing import Reversing
from areal_like.data.tasks.sorting import Sorting
from areal_like.data.user_code import (
    SearchFolders,
    check_call,
    config_error,
    is_built_in,
    load_object,
    make_object,
    pick_built_in,
)

__all__ = ["BUILT_IN", "TEST", "TRAIN", "RewardValue", "Row", "Task", "make_task"]

BUILT_IN: dict[str, Any] = {
    "addition": Addition,
    "counting": Counting,
    "reversing": Reversing,
    "sorting": Sorting,
}


def make_task(name: str, args: dict[str, Any], places: SearchFolders) -> Task:
    """Creates the task with its arguments."""
    kind = pick_built_in("task.name", name, BUILT_IN) if is_built_in(name) else load_object("task.name", name, places)
    task: Task = make_object("task.name", "task.args", name, kind, args)
    if not callable(getattr(task, "rows", None)):
        raise config_error("task.name", f"{name} is not a task: it has no method rows(split)")
    check_call("task.name", name, task, "rows", "split")
    return task
