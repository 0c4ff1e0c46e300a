"""Tasks by name: those that come with the package, and the user's own."""

from typing import Any

from areal_like.data.named import Places, check_call, is_built_in, load, make, pick, problem
from areal_like.data.tasks.addition import Addition
from areal_like.data.tasks.base import TEST, TRAIN, Row, Task, Worth
from areal_like.data.tasks.counting import Counting
from areal_like.data.tasks.reversing import Reversing
from areal_like.data.tasks.sorting import Sorting

__all__ = ["BUILT_IN", "TEST", "TRAIN", "Row", "Task", "Worth", "make_task"]

BUILT_IN: dict[str, Any] = {
    "addition": Addition,
    "counting": Counting,
    "reversing": Reversing,
    "sorting": Sorting,
}


def make_task(name: str, args: dict[str, Any], places: Places) -> Task:
    """The task of that name, made with its arguments."""
    kind = pick("task.name", name, BUILT_IN) if is_built_in(name) else load("task.name", name, places)
    task: Task = make("task.name", "task.args", name, kind, args)
    if not callable(getattr(task, "rows", None)):
        raise problem("task.name", f"{name} is no task: it has no method rows(split)")
    check_call("task.name", name, task, "rows", "split")
    return task
