"""The task that rows come from: `task.name`, or a built-in task that stands as the path of a dataset."""

from typing import Any

from areal_like.config.built_in import TASKS


def task_as_path(path: Any) -> str | None:
    """The built-in task that this path of a dataset names."""
    return path if isinstance(path, str) and path in TASKS else None


def task_name(config: Any) -> str | None:
    """That of the training data."""
    name: str | None = config.task.name
    return task_as_path(config.train_dataset.path) if name is None else name
