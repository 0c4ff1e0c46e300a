"""Checkpoints of other runs that a run begins with: they are marked as kept, so that their own run does not remove them
while this one goes on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal_like.config.allocation.models import trained_models
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import ConfigError, Problem
from areal_like.process.checkpoint_files import KEPT, step_of
from areal_like.process.run import CONFIG
from launcher.plan.reward_model import KEY as REWARD_PATH
from launcher.plan.reward_model import has_reward_model


def keep_checkpoints(config: Any, cwd: Path, own: Path) -> tuple[str, ...]:
    """Marks them; returns what a user should know. `own` is the run's directory, whose checkpoints are its own matter.
    Raises ConfigError where one was removed since it was planned with."""
    remarks = []
    for key, path in _paths(config):
        folder = _checkpoint(cwd / Path(path).expanduser())
        if folder is None or folder.is_relative_to(own) or (folder / KEPT).is_file():
            continue
        try:
            (folder / KEPT).touch()
            remarks.append(f"{key}: {folder} is kept from now on, its own run does not remove it any more")
        except PermissionError:
            remarks.append(f"{key}: {folder} is not yours to be marked as kept, and its own run may remove it")
        except FileNotFoundError:
            message = f"{folder} was just removed by its run; start again with a newer checkpoint"
            raise ConfigError([Problem(key, message)]) from None
    return tuple(remarks)


def _checkpoint(model: Path) -> Path | None:
    """The checkpoint of a run that a model's folder is, or is in, as that of a critic."""
    for folder in (model, model.parent):
        if step_of(folder.name) is not None and (folder.parent.parent / CONFIG).is_file():
            return folder
    return None


def _paths(config: Any) -> Iterator[tuple[str, str]]:
    """The models that processes of the run load, by their keys; of one folder the first key."""
    seen = set()
    for name, engine in trained_models(config):
        if engine.path and engine.path not in seen:
            seen.add(engine.path)
            yield f"{name}.path", engine.path
    if isinstance(config, GRPOConfig) and has_reward_model(config):
        yield REWARD_PATH, str(config.reward.args["path"])
