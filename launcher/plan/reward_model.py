"""The reward model of a run (the reward `model`, alone or in a sum): its folder, and why it cannot be served."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation.models import generates
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.config.sections.reward import reward_model
from areal_like.process.checkpoint_files import complete_checkpoints
from launcher.plan.host import HostInfo
from launcher.plan.model_config import find_model_config
from launcher.plan.plan import Resolved
from launcher.runs.registry import ambiguity_text, find_runs

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

ARCHITECTURE = "ForSequenceClassification"
"""Class name suffix in transformers of models that score a whole text."""


class RewardModelSource(NamedTuple):
    """`key`: the key of its path. `path`: the folder to load. `reason`: how the name of a run was resolved to it.
    `problem`: why it cannot be used, or empty."""

    key: str
    path: str
    reason: str = ""
    problem: str = ""


def has_reward_model(config: "BaseExperimentConfig") -> bool:
    return generates(config) and reward_model(config.reward) is not None


def reward_model_source(config: "BaseExperimentConfig", host: HostInfo) -> RewardModelSource | None:
    """The reward model, if the run uses one: a folder, a name on the Hub, or the newest checkpoint of another run."""
    model = reward_model(config.reward) if isinstance(config, GRPOConfig) and generates(config) else None
    if model is None:
        return None
    key, path = f"{model.section}.args.path", str(model.args["path"])
    source = RewardModelSource(key, path)
    content, why = find_model_config(path, host)
    if content is None:
        root = host.directory / Path(config.cluster.fileroot).expanduser()
        runs = find_runs(path, root, host.directory)
        if len(runs) > 1:
            return RewardModelSource(key, path, problem=ambiguity_text(path, runs, root))
        if not runs:
            remedy = (
                "give the folder of a reward model, or a run that trained one: its folder, experiment/trial, or trial"
            )
            return RewardModelSource(key, path, problem=f"{why}, and no run has that name; {remedy}")
        (run,) = runs
        checkpoints = complete_checkpoints(run / "checkpoints")
        if not checkpoints:
            return RewardModelSource(key, path, problem=f"{run} has no complete checkpoint yet")
        folder = str(checkpoints[-1][1].resolve())
        source = RewardModelSource(key, folder, f"the newest checkpoint of {'/'.join(run.parts[-2:])}")
        content, why = find_model_config(folder, host)
    kinds = (content or {}).get("architectures") or [why]
    if not any(str(kind).endswith(ARCHITECTURE) for kind in kinds):
        problem = f"{source.path} is not a reward model ({', '.join(map(str, kinds))}); reward_model.yaml trains one"
        return source._replace(problem=problem)
    return source


def resolved_reward_model(config: "BaseExperimentConfig", host: HostInfo) -> list[Resolved]:
    """The name of a run is resolved once, so that the whole run uses the same checkpoint."""
    source = reward_model_source(config, host)
    return [Resolved(source.key, source.path, source.reason)] if source and source.reason and not source.problem else []


def reward_model_problems(config: "BaseExperimentConfig", here: HostInfo) -> list[Problem]:
    source = reward_model_source(config, here)
    return [Problem(source.key, source.problem)] if source and source.problem else []
