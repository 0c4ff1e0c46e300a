"""What is to be learnt: rows, how an answer to one comes about, and what it is worth."""

from typing import Any

from areal_like.config.fields import config, key


@config
class TaskConfig:
    """Where rows come from when a program makes them."""

    name: str | None = key(None)
    """A built-in task, or one's own as `package.module:thing` or `file.py:thing`. Null: rows come from
    `train_dataset.path`."""

    args: dict[str, Any] = key({})
    """Arguments of the task, checked against its signature. New names may be added with `+task.args.name=`."""


@config
class WorkflowConfig:
    """How one row becomes a trajectory."""

    name: str | None = key(None)
    """A built-in workflow, or one's own as `package.module:thing` or `file.py:thing`. Null: one prompt, one answer."""

    args: dict[str, Any] = key({})
    """Arguments of the workflow, checked against its signature. New names may be added with `+workflow.args.name=`."""


REWARD_MODEL = "model"
"""The built-in reward that a model gives, which is served beside the run: `reward.args.path` says which."""


@config
class RewardConfig:
    """What an answer is worth."""

    name: str | None = key(None)
    """A built-in reward, or one's own as `package.module:thing` or `file.py:thing`. Null: the one that the task
    brings. `model` asks a reward model that is served beside the run; `path` in `args` is its folder, or the run that
    trained it."""

    args: dict[str, Any] = key({})
    """Arguments of the reward, checked against its signature. New names may be added with `+reward.args.name=`."""

    timeout_s: float = key(15.0, gt=0)
    """Seconds that one reward may take. Past that it is stopped, and counted as an error, never as a reward of 0."""
