"""The model whose scores are the reward (`reward.name=model`): which folder it is, and why it cannot be served."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation.models import generates
from areal_like.config.experiment import GRPOConfig
from areal_like.config.sections.data import REWARD_MODEL
from areal_like.process.checkpoint_files import complete_checkpoints
from launcher.plan.host import HostInfo
from launcher.plan.model_shape import find_config
from launcher.plan.plan import PlanProblem, Resolved
from launcher.runs.registry import ambiguity_text, find_runs

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

KEY = "reward.args.path"
ARCHITECTURE = "ForSequenceClassification"
"""What transformers calls a model with one head over a whole text."""


class RewardModelSource(NamedTuple):
    """`path` is what a process is told. `reason` says how a run's name became it, `lack` what speaks against it."""

    path: str
    reason: str = ""
    lack: str = ""


def has_reward_model(config: "BaseExperimentConfig") -> bool:
    return generates(config) and config.reward.name == REWARD_MODEL


def reward_model_source(config: "BaseExperimentConfig", host: HostInfo) -> RewardModelSource | None:
    """That of the run, if its reward is one: a folder, a name on the Hub, or what another run has learnt so far."""
    if not isinstance(config, GRPOConfig) or not has_reward_model(config):
        return None
    said = str(config.reward.args["path"])
    found = RewardModelSource(said)
    content, why = find_config(said, host)
    if content is None:
        root = host.directory / Path(config.cluster.fileroot).expanduser()
        runs = find_runs(said, root, host.directory)
        if len(runs) > 1:
            return RewardModelSource(said, lack=ambiguity_text(said, runs, root))
        if not runs:
            ways = (
                "give the folder of a reward model, or a run that trained one: its folder, experiment/trial, or trial"
            )
            return RewardModelSource(said, lack=f"{why}, and no run is called so; {ways}")
        (run,) = runs
        checkpoints = complete_checkpoints(run / "checkpoints")
        if not checkpoints:
            return RewardModelSource(said, lack=f"{run} has no complete checkpoint yet")
        folder = str(checkpoints[-1][1].resolve())
        found = RewardModelSource(folder, f"the newest checkpoint of {'/'.join(run.parts[-2:])}")
        content, why = find_config(folder, host)
    kinds = (content or {}).get("architectures") or [why]
    if not any(str(kind).endswith(ARCHITECTURE) for kind in kinds):
        lack = f"{found.path} is no reward model ({', '.join(map(str, kinds))}); reward_model.yaml trains one"
        return found._replace(lack=lack)
    return found


def resolved_reward_model(config: "BaseExperimentConfig", host: HostInfo) -> list[Resolved]:
    """A run's name stands for one of its checkpoints from the first step to the last."""
    found = reward_model_source(config, host)
    return [Resolved(KEY, found.path, found.reason)] if found and found.reason and not found.lack else []


def reward_model_problems(config: "BaseExperimentConfig", host: HostInfo) -> list[PlanProblem]:
    found = reward_model_source(config, host)
    return [PlanProblem(KEY, found.lack)] if found and found.lack else []
