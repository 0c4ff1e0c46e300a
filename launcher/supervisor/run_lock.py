"""Acquires the run directory: its folder, the name of its launcher, and the start point of the next attempt."""

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.allocation.models import generates, only_evaluates, trained_models
from areal_like.config.experiment import GRPOConfig
from areal_like.config.loaded import Loaded, build_config
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.reward import reward_model
from areal_like.discovery import (
    MemoryEntries,
    NameStore,
    NameTaken,
    UnusableFolder,
    announce,
    file_name_store,
    memory_name_store,
    name_store_for,
)
from areal_like.process.atomic_file import make_durable_folder, remove_half_files
from areal_like.process.checkpoint_files import KEPT, step_of
from areal_like.process.errors import Failure
from areal_like.process.identity import Identity
from areal_like.process.run import CONFIG, Run, StartPoint, last_attempt
from areal_like.process.wait import NamedWait
from launcher.plan.auto import resolved_values
from launcher.plan.build import build_plan
from launcher.plan.plan import Plan
from launcher.plan.purpose import Purpose
from launcher.runs.linked_folders import create_links
from launcher.runs.registry import LAUNCHER, OWNER, register, running_text
from launcher.runs.run_files import write_description, write_start_point
from launcher.supervisor.checkpoint_search import CheckpointSearch, FoundCheckpoint
from launcher.supervisor.lifecycle import wait_limits
from launcher.supervisor.rollback import roll_back
from launcher.terminal import write_line

log = logging.getLogger(__name__)


class LockedRun(NamedTuple):
    """A run that no other launcher can start now. `messages` are messages for the user."""

    plan: Plan
    run: Run
    names: NameStore
    start: StartPoint
    messages: tuple[str, ...]
    is_new: bool = False
    """Whether this start created the run directory."""
    claim: NameStore | None = None
    """That of the directory itself."""

    def release(self, clears: bool = True) -> None:
        """At the end. `clears`: also what is left of the run's processes; not where another launcher uses the names.
        A store that does not answer, as on a dead disk, does not keep this launcher: its entries end with it."""

        def work() -> None:
            try:
                self.release_directory()
                if clears and self.names.holds(LAUNCHER):
                    self.names.clear()
                self.names.close()
            except Exception as fault:
                log.warning("entries below %s stay until this process ends: %s", self.names.prefix, fault)

        limit_s = self.run.config.cluster.name_resolve.ttl_s
        thread = threading.Thread(target=work, name="release", daemon=True)
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            log.warning("the names below %s have not answered for %g s; they are left", self.names.prefix, limit_s)

    def release_directory(self) -> None:
        if self.claim is not None:
            self.claim.close()


def lock_run(
    loaded: Loaded, plan: Plan, run_id: str, replace_existing: bool, purpose: Purpose = Purpose.RUN
) -> LockedRun:
    """Raises ConfigError, with the directory unchanged, where the run has another launcher. `purpose` is the plan's."""
    kept = keep_checkpoints(
        build_config(loaded.cls, resolved_values(loaded, plan.auto)), Path.cwd(), Path(plan.run_dir)
    )
    plan, is_new = _make_folder(loaded, plan, replace_existing, purpose)
    try:
        locked = _acquire(loaded, plan, run_id, purpose is Purpose.SERVE)
        return locked._replace(is_new=is_new, messages=(*locked.messages, *kept))
    except BaseException:
        directory = Path(plan.run_dir)
        if is_new and not any(directory.iterdir()):  # frees the trial number
            directory.rmdir()
        raise


def _acquire(loaded: Loaded, plan: Plan, run_id: str, serves: bool) -> LockedRun:
    directory, cwd = Path(plan.run_dir), Path.cwd()
    config = build_config(loaded.cls, resolved_values(loaded, plan.auto))
    owner, ttl_s = f"pid {os.getppid()}", config.cluster.name_resolve.ttl_s
    with ExitStack() as opened:  # closed where this start ends here
        names = opened.enter_context(name_store_for(config, cwd, owner))
        names.check()
        claim = opened.enter_context(_open_claim(directory, owner, ttl_s))
        _announce_launcher(names, directory, ttl_s)
        messages = _claim_directory(claim, names, directory, ttl_s)
        if plan.run_directory.state == "replaced":
            claim.close()  # it would be moved as well
            messages = (_move_aside(directory),)
            claim = opened.enter_context(_open_claim(directory, owner, ttl_s))
            messages += _claim_directory(claim, names, directory, ttl_s)
        remove_half_files(directory)
        run = Run(directory, config, loaded.experiment, run_id, loaded.folder, cwd, serves)
        locked = _describe(loaded, plan, run, names, messages)
        opened.pop_all()
    return locked._replace(claim=claim)


def _open_claim(directory: Path, owner: str, ttl_s: float) -> NameStore:
    """The store of a name in the run directory itself, where a launcher finds it that looks for the run's names
    elsewhere: for another user, from another container, in another store. The claim of a launcher on another
    machine is watched from now on, so that its time to live passes together with that of the name. Other users may read
    it: it holds no address."""
    try:
        claim = file_name_store(directory, OWNER, owner, ttl_s, is_private=False)
    except UnusableFolder:  # nothing can be written there, which the next file reports
        return memory_name_store(OWNER, owner, MemoryEntries())
    claim.holder(LAUNCHER)
    return claim


def _claim_directory(claim: NameStore, names: NameStore, directory: Path, ttl_s: float) -> tuple[str, ...]:
    """To lose the claim is to lose the name. Returns a message where the disk has no links: then only the name keeps
    other launchers out."""
    try:
        _announce_launcher(claim, directory, ttl_s)
        claim.lost = names.lost
    except UnusableFolder as fault:
        with suppress(OSError):
            claim.clear()  # empty folders
        return (f"{directory} cannot be claimed ({fault.error}): do not start this run from elsewhere as well",)
    return ()


def _describe(loaded: Loaded, plan: Plan, run: Run, names: NameStore, messages: tuple[str, ...]) -> LockedRun:
    """Writes the files that describe this start, and its start point."""
    directory, config = run.directory, run.config
    attempt = last_attempt(directory) + 1
    found = None if attempt == 1 else _checkpoint_to_resume(run)
    _refuse_if_taken_over(directory, names, attempt)
    if attempt == 1:
        messages += (*create_links(run), *_free_answers_folder(run, plan.run_directory.state == "replaced"))
    write_description(loaded, plan, run.run_id, run.folder, run.cwd, attempt, run.serves)
    if found is None:
        write_start_point(directory, StartPoint(1, 0, None, owner=run.run_id))
    else:
        messages += roll_back(run, attempt, attempt, found).messages
    register(config.experiment_name, config.trial_name, directory)
    return LockedRun(plan, run, names, run.start_point(), messages)


def _refuse_if_taken_over(directory: Path, names: NameStore, attempt: int) -> None:
    """Before anything is written: the search for a checkpoint takes minutes, in which this launcher may have been
    stopped, or one that was cut off from the names may have gone on."""
    newest = last_attempt(directory)
    if LAUNCHER in names.lost:
        why = f"this launcher has lost the name of its run ({names.lost[LAUNCHER]})"
    elif newest != attempt - 1:
        why = f"another launcher has begun attempt {newest} of this run"
    else:
        return
    message = f"{directory}: while its checkpoint was read, {why}; stop the other, or name another run with trial_name="
    raise ConfigError([Problem("trial_name", message)])


def _checkpoint_to_resume(run: Run) -> FoundCheckpoint:
    """Raises ConfigError where the user asked for a checkpoint and every one is damaged, Failure where the disk does
    not answer, or gives none and a part of one may be whole."""
    config, step = run.config, run.config.resume_step
    search = CheckpointSearch(run, None if step is None or step < 0 else step)
    limits = wait_limits(config)
    found = search.wait(limits.setup_s, limits.setup_key, lambda text: write_line(f"  {text}", sys.stdout))
    if found.unread_text is not None:
        raise Failure(found.unread_text)
    asks = config.resume is not None or config.recover.mode == "resume"
    if found.checkpoint is None and found.skipped and asks and not only_evaluates(config):
        key = "recover.mode" if config.resume is None else "resume"
        remedy = "restore its files, or start another run with trial_name="
        raise ConfigError([Problem(key, f"{run.directory} has no undamaged checkpoint; {remedy}: {found.skipped[0]}")])
    return found


def _make_folder(loaded: Loaded, plan: Plan, replace_existing: bool, purpose: Purpose) -> tuple[Plan, bool]:
    """The plan, and whether the folder is new. Of two simultaneous starts that chose the same trial number, the one
    that creates the folder keeps it; the other one takes the next number."""
    while True:
        directory = Path(plan.run_dir)
        numbered = loaded.config.trial_name == "auto" and plan.run_directory.state == "new"
        try:
            make_durable_folder(directory)
            return plan, True
        except FileExistsError:
            if not directory.is_dir():
                raise
            if not numbered:
                return plan, False
            plan = build_plan(loaded, replace_existing=replace_existing, purpose=purpose)


def _announce_launcher(names: NameStore, directory: Path, ttl_s: float) -> None:
    wait = NamedWait("the launcher on another machine, which may be dead", 4 * ttl_s, "cluster.name_resolve.ttl_s")
    try:
        announce(names, Identity("launcher", 0), "", waiting=wait)
    except NameTaken as taken:
        holder = names.holder(LAUNCHER)
        reason = str(taken) if holder is None else running_text(directory, holder)
        message = f"{reason}; stop it first, or name another run with trial_name="
        raise ConfigError([Problem("trial_name", message)]) from None
    names.clear()


def _move_aside(directory: Path) -> str:
    """--replace keeps the earlier run directory under another name."""
    number = 1
    while (aside := directory.with_name(f"{directory.name}.replaced-{number}")).exists():
        number += 1
    directory.rename(aside)
    directory.mkdir()
    return f"the earlier run is kept: {aside}"


def _free_answers_folder(run: Run, is_replaced: bool) -> Iterator[str]:
    """At the first start no answers of another run may lie where those of this one will: it would take them for its
    own. Those of a run that it replaces are moved aside as well."""
    from areal_like.rollout.evaluation.answer_folders import answers_folder

    folder = answers_folder(run)
    if run.config.evaluator.save.disk_path is None or not folder.is_dir() or not any(folder.iterdir()):
        return
    if is_replaced:
        yield _move_aside(folder)
        return
    message = f"{folder} has the answers of another run; set another folder or trial_name=, or move them away"
    raise ConfigError([Problem("evaluator.save.disk_path", message)])


def keep_checkpoints(config: Any, cwd: Path, own: Path) -> tuple[str, ...]:
    """Marks checkpoints of other runs that this one loads as kept, so that retention does not remove them. Returns
    messages for the user. `own` is the run's own directory, which is left out. Raises ConfigError where a checkpoint
    was removed since the plan was made."""
    messages = []
    for key, path in _paths(config):
        folder = _checkpoint(cwd / Path(path).expanduser())
        if folder is None or folder.is_relative_to(own) or (folder / KEPT).is_file():
            continue
        try:
            (folder / KEPT).touch()
            messages.append(f"{key}: {folder} is marked as kept: its own run no longer removes it")
        except PermissionError:
            messages.append(f"{key}: {folder} cannot be marked as kept by this user: its own run may remove it")
        except FileNotFoundError:
            message = f"{folder} was just removed by its run; start again with a newer checkpoint"
            raise ConfigError([Problem(key, message)]) from None
    return tuple(messages)


def _checkpoint(model: Path) -> Path | None:
    """The checkpoint of a run that contains this model; a critic's lies in a subfolder."""
    for folder in (model, model.parent):
        if step_of(folder.name) is not None and (folder.parent.parent / CONFIG).is_file():
            return folder
    return None


def _paths(config: Any) -> Iterator[tuple[str, str]]:
    """Keys and paths of the models that the run loads; each path once."""
    seen = set()
    for name, engine in trained_models(config):
        if engine.path and engine.path not in seen:
            seen.add(engine.path)
            yield f"{name}.path", engine.path
    model = reward_model(config.reward) if isinstance(config, GRPOConfig) and generates(config) else None
    if model is not None:
        yield f"{model.section}.args.path", str(model.args["path"])
