"""Making a run directory one's own: the folder, the name, and where its next attempt begins."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.allocation.models import trained_models
from areal_like.config.experiment import GRPOConfig
from areal_like.config.loaded import Loaded, build_config
from areal_like.config.problems import ConfigError, Problem
from areal_like.discovery import NameStore, NameTaken, announce, name_store_for
from areal_like.process.abandoned_memory import remove_abandoned_memory
from areal_like.process.checkpoint_files import KEPT, step_of
from areal_like.process.identity import Identity
from areal_like.process.run import CONFIG, Run, StartPoint
from areal_like.process.wait import NamedWait
from launcher.plan.auto import resolved_values
from launcher.plan.build import build_plan
from launcher.plan.plan import Plan
from launcher.plan.reward_model import KEY as REWARD_PATH
from launcher.plan.reward_model import has_reward_model
from launcher.runs.linked_folders import create_links
from launcher.runs.registry import last_attempt, register
from launcher.runs.run_files import read_facts, write_description, write_start_point
from launcher.supervisor.rollback import roll_back


class LockedRun(NamedTuple):
    """A run that nobody else can start now. `remarks` are what a user should know."""

    plan: Plan
    run: Run
    names: NameStore
    start: StartPoint
    remarks: tuple[str, ...]
    is_new: bool = False
    """Whether this start has made the run's directory."""


def lock_run(loaded: Loaded, plan: Plan, run_id: str, replace_existing: bool, serves: bool = False) -> LockedRun:
    """Raises ConfigError where the run has another launcher; nothing of the directory was touched then. `serves`: the
    run is servers alone."""
    held = keep_checkpoints(
        build_config(loaded.cls, resolved_values(loaded, plan.auto)), Path.cwd(), Path(plan.run_dir)
    )
    plan, is_new = _make_folder(loaded, plan, replace_existing, serves)
    try:
        claimed = _claimed(loaded, plan, run_id, serves)
        return claimed._replace(is_new=is_new, remarks=(*claimed.remarks, *held))
    except BaseException:
        directory = Path(plan.run_dir)
        if is_new and not any(directory.iterdir()):  # nobody could take the name: the number is free again
            directory.rmdir()
        raise


def _claimed(loaded: Loaded, plan: Plan, run_id: str, serves: bool) -> LockedRun:
    directory, cwd = Path(plan.run_dir), Path.cwd()
    config = build_config(loaded.cls, resolved_values(loaded, plan.auto))
    names = name_store_for(config, cwd, f"launcher/0 of the command with process number {os.getppid()}")
    _announce_launcher(names, config.cluster.name_resolve.ttl_s)
    run = Run(directory, config, loaded.experiment, run_id, loaded.file.resolve().parent, cwd, serves)
    try:
        return _described(loaded, plan, run, names)
    except BaseException:
        names.close()
        raise


def _described(loaded: Loaded, plan: Plan, run: Run, names: NameStore) -> LockedRun:
    """The directory is ours by now: what this start is goes into it, and where it begins."""
    directory, config = run.directory, run.config
    remove_abandoned_memory()
    remarks: tuple[str, ...] = ()
    if plan.run_directory.state == "replaced":
        remarks = (_move_aside(directory),)
    if run.folder == directory.resolve():  # its own configuration is what it is started with again
        run = replace(run, folder=Path(read_facts(directory).get("folder", run.folder)))
    attempt = last_attempt(directory) + 1
    if attempt == 1:
        remarks += create_links(run)
    write_description(loaded, plan, run.run_id, run.folder, run.cwd, attempt, run.serves)
    if attempt == 1:
        write_start_point(directory, StartPoint(1, 0, None))
    else:
        wanted = config.resume_step
        remarks += roll_back(run, attempt, attempt, None if wanted is None or wanted < 0 else wanted).remarks
    register(config.experiment_name, config.trial_name, directory)
    return LockedRun(plan, run, names, run.start_point(), remarks)


def _make_folder(loaded: Loaded, plan: Plan, replace_existing: bool, serves: bool) -> tuple[Plan, bool]:
    """The plan, and whether the folder was not there before. Of two starts at once that were given the same next
    number, the one that makes the folder has it."""
    while True:
        directory = Path(plan.run_dir)
        numbered = loaded.config.trial_name == "auto" and plan.run_directory.state == "new"
        try:
            directory.mkdir(parents=True)
            return plan, True
        except FileExistsError:
            if not directory.is_dir():
                raise
            if not numbered:
                return plan, False
            plan = build_plan(loaded, replace_existing=replace_existing, serves=serves)


def _announce_launcher(names: NameStore, ttl_s: float) -> None:
    patience = NamedWait("its holder on another machine, should that be dead", 4 * ttl_s, "cluster.name_resolve.ttl_s")
    try:
        announce(names, Identity("launcher", 0), "", waiting=patience)
    except NameTaken as taken:
        names.close()
        message = f"{taken}: this run is running; stop that one first, or name another with trial_name="
        raise ConfigError([Problem("trial_name", message)]) from None
    names.clear()


def _move_aside(directory: Path) -> str:
    """What --replace replaces is kept, beside it."""
    number = 1
    while (aside := directory.with_name(f"{directory.name}.replaced-{number}")).exists():
        number += 1
    directory.rename(aside)
    directory.mkdir()
    return f"the earlier run is kept: {aside}"


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
