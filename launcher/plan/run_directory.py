"""Determines the directory of a run; creates nothing."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.allocation.models import only_evaluates
from areal_like.config.problems import Problem
from areal_like.discovery.owner import this_process
from areal_like.process.run import last_attempt
from areal_like.process.run_links import missing_link_targets
from launcher.plan.host import HostInfo
from launcher.plan.plan import RunDirectory
from launcher.runs.checkpoints import complete_steps, resumable_aside, resumable_steps, step_folder
from launcher.runs.registry import ambiguity_text, find_runs, lock_holder, running_text
from launcher.runs.resumable import run_config_values, why_not_resumable

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

TRIAL = re.compile(r"r(\d{4,})(?:-\d+)?")
"""Points of a sweep append their number."""
MODEL = "config.json"
"""A file that every model folder has."""
EXISTING_RUN_REMEDY = "name another with trial_name=, continue with resume={run}, or start over with --replace"
NO_CHECKPOINT_REMEDY = (
    "name a run that has one with trial_name= or resume=, or set recover.mode=auto to begin a new one"
)
NEW_RUN_REMEDY = "name another with trial_name=, or start over with --replace"


def plan_run_directory(
    config: "BaseExperimentConfig",
    file: Path | None,
    host: HostInfo,
    replace_existing: bool = False,
    trains: bool = True,
) -> tuple[RunDirectory, list[Problem]]:
    """The directory, and problems that prevent its use. `trains`: not a command that only starts servers."""
    directory, problems = _planned(config, file, host, replace_existing)
    begins = directory.state in ("new", "replaced") and trains and not only_evaluates(config) and not config.bench
    if begins and config.recover.mode == "resume":
        reason = f"resume needs a checkpoint, and {_why_it_begins(config, directory)}"
        problems = [*problems, Problem("recover.mode", f"{reason}; {NO_CHECKPOINT_REMEDY}")]
    return directory, problems


def _why_it_begins(config: "BaseExperimentConfig", directory: RunDirectory) -> str:
    if directory.state == "replaced":
        return "--replace starts over"
    if config.trial_name == "auto":
        return "trial_name=auto starts a new run"
    return f"{directory.path} {directory.reason}"


def _planned(
    config: "BaseExperimentConfig", file: Path | None, host: HostInfo, replace_existing: bool
) -> tuple[RunDirectory, list[Problem]]:
    root = Path(os.path.abspath(host.directory / Path(config.cluster.fileroot).expanduser()))
    if config.resume is not None:
        return _resumed(config, root, file, host)
    experiment = root / config.experiment_name
    if config.trial_name == "auto":
        trial, reason = next_trial(experiment)
        return RunDirectory(str(experiment / trial), trial, "new", reason), []
    path, trial = experiment / config.trial_name, config.trial_name
    if not path.is_dir():
        return RunDirectory(str(path), trial, "new", "does not exist yet"), []
    if not any(path.iterdir()):
        return RunDirectory(str(path), trial, "new", "exists and is empty"), []
    if (running := _running(path)) is not None:
        return running
    if replace_existing:
        return RunDirectory(str(path), trial, "replaced", "exists; --replace starts over in its place"), []
    return _existing(config, path, host)


def _running(path: Path, key: str = "trial_name") -> tuple[RunDirectory, list[Problem]] | None:
    """The problem where another launcher uses the directory. A start checks whether one on another machine is dead."""
    claim = lock_holder(path)
    if claim is None or claim.owner is None or not claim.owner.is_local(this_process()):
        return None
    reason = f"{running_text(path, claim)}; stop it first, or name another run with trial_name="
    return RunDirectory(str(path), path.name, "exists", reason), [Problem(key, reason)]


def next_trial(experiment: Path) -> tuple[str, str]:
    """The number after the highest existing one."""
    taken = [int(match[1]) for name in _names(experiment) if (match := TRIAL.fullmatch(name))]
    if not taken:
        return "r0001", f"first trial in {experiment}"
    return f"r{max(taken) + 1:04d}", f"next free after r{max(taken):04d} in {experiment}"


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def _existing(config: "BaseExperimentConfig", path: Path, host: HostInfo) -> tuple[RunDirectory, list[Problem]]:
    if only_evaluates(config):
        return _evaluated(path, "trial_name")
    trial, mode = config.trial_name, config.recover.mode
    run = path.relative_to(host.directory) if path.is_relative_to(host.directory) else path
    steps = resumable_steps(path)
    aside = None if steps else resumable_aside(path)
    if mode not in ("auto", "resume"):
        remedy = (
            EXISTING_RUN_REMEDY.format(run=run)
            if steps or aside is not None
            else f"{NEW_RUN_REMEDY} (it cannot be resumed: {why_not_resumable(path)})"
        )
        reason = f"the run directory {path} exists; {remedy}"
        return RunDirectory(str(path), trial, "exists", reason), [Problem("trial_name", reason)]
    if steps:
        reason = f"resuming from step {steps[-1]} (recover.mode={mode})"
        return RunDirectory(str(path), trial, "continues", reason, steps[-1], last_attempt(path) + 1), []
    if aside is not None:
        return _continues_aside(path, aside, f"recover.mode={mode}"), []
    if mode == "auto":
        reason = f"{missing_link_targets(path) or 'no complete checkpoint: from the beginning'} (recover.mode=auto)"
        return RunDirectory(str(path), trial, "continues", reason, None, last_attempt(path) + 1), []
    remedy = "set recover.mode=auto to start from the beginning"
    reason = f"resume needs a checkpoint in {path}, and {why_not_resumable(path)}; {remedy}"
    return RunDirectory(str(path), trial, "exists", reason), [Problem("recover.mode", reason)]


def resumed_checkpoint(directory: RunDirectory) -> Path | None:
    """From which it continues, also one whose steps do not count. None: from the beginning."""
    if directory.state != "continues":
        return None
    path = Path(directory.path)
    return resumable_aside(path) if directory.step is None else step_folder(path, directory.step)


def _continues_aside(path: Path, checkpoint: Path, why: str) -> RunDirectory:
    """Where the last attempt began at a checkpoint whose steps do not count, and has written none of its own."""
    reason = f"resuming from {checkpoint.relative_to(path)} ({why})"
    return RunDirectory(str(path), path.name, "continues", reason, None, last_attempt(path) + 1)


def _evaluated(path: Path, key: str) -> tuple[RunDirectory, list[Problem]]:
    """A run that only evaluates goes on where it was; one that has trained is evaluated as another run."""
    attempt = last_attempt(path) + 1
    if run_config_values(path).get("total_train_steps") == 0:
        return RunDirectory(str(path), path.name, "continues", "an evaluation that goes on", None, attempt), []
    reason = f"{path} is a run that trains; evaluate its newest model as another run: eval {path} --config FILE"
    return RunDirectory(str(path), path.name, "exists", reason), [Problem(key, reason)]


def _resumed(
    config: "BaseExperimentConfig", root: Path, file: Path | None, host: HostInfo
) -> tuple[RunDirectory, list[Problem]]:
    assert config.resume is not None
    matches = find_runs(config.resume, root, host.directory, file)
    if len(matches) != 1:
        reason = ambiguity_text(config.resume, matches, root)
        folder = root if "/" in config.resume else root / config.experiment_name
        where = Path(os.path.abspath(folder / Path(config.resume).expanduser()))
        return RunDirectory(str(where), where.name, "missing", reason), [Problem("resume", reason)]
    (path,) = matches
    if (running := _running(path, "resume")) is not None:
        return running
    if only_evaluates(config):
        return _evaluated(path, "resume")
    steps, resume_step = resumable_steps(path), config.resume_step
    if not steps:
        if (resume_step is None or resume_step < 0) and (aside := resumable_aside(path)) is not None:
            return _continues_aside(path, aside, f"resume={config.resume}"), []
        reason = f"{path} cannot be resumed: {why_not_resumable(path)}{_from_its_model(config, path)}"
        problems = [] if missing_link_targets(path) else [Problem("resume", reason)]  # of a lost part its own key tells
        return RunDirectory(str(path), path.name, "exists", reason), problems
    if resume_step is not None and resume_step >= 0 and resume_step not in steps:
        listed = ", ".join(str(step) for step in steps[-10:])
        reason = f"{path} has no complete checkpoint of step {resume_step}; it has those of steps {listed}"
        return RunDirectory(str(path), path.name, "exists", reason), [Problem("resume_step", reason)]
    step = steps[-1] if resume_step is None or resume_step < 0 else resume_step
    reason = f"resuming from step {step} (resume={config.resume})"
    return RunDirectory(str(path), path.name, "continues", reason, step, last_attempt(path) + 1), []


def _from_its_model(config: "BaseExperimentConfig", path: Path) -> str:
    """A hint where a run has saved a model without resume state."""
    steps = complete_steps(path)
    if not steps or not (step_folder(path, steps[-1]) / MODEL).is_file():
        return ""
    name = "actor" if hasattr(config, "actor") else "model"
    return f"; a new run can start from that model: --config FILE {name}.path={step_folder(path, steps[-1])}"
