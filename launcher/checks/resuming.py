"""Checks of a resumed run: changes that its checkpoint does not fit, and folders that were moved."""

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation.models import trained_models
from areal_like.config.problems import Problem
from areal_like.process.checkpoint_files import step_of
from areal_like.process.run import ATTEMPT
from areal_like.process.run_links import LINKS, link_target, other_roots
from launcher.plan.host import HostInfo
from launcher.plan.model_config import known_shape
from launcher.plan.plan import RunDirectory
from launcher.plan.run_directory import resumed_checkpoint
from launcher.runs.resumable import run_config_values

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


ADAPTER_KEYS = ("lora_rank", "lora_alpha", "target_modules", "lora_modules_to_save")
"""Keys that determine the tensors of an adapter and their scale."""
ALL = "all-linear"
SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "tied", "inner")
"""Dimensions that determine the tensors of a model."""


def resume_problems(config: "BaseExperimentConfig", directory: RunDirectory) -> Iterator[Problem]:
    """Compares with the configuration of the last start, and with the step of the checkpoint."""
    checkpoint, run, step = resumed_checkpoint(directory), Path(directory.path), directory.step or 0
    if checkpoint is None:
        return
    from areal_like.config.describe.yaml_text import scalar_text  # these bring yaml
    from areal_like.config.dotted_path import MISSING, value_at

    total = config.total_train_steps
    if total is not None and total < step and not config.recover.skip_progress:
        earlier = ", or resume from an earlier checkpoint with resume_step=" if config.resume is not None else ""
        reason = f"is {total}, and the checkpoint from which {run} resumes has {step} steps"
        yield Problem("total_train_steps", f"{reason}; it counts all steps, so set it to more than {step}{earlier}")
    before = run_config_values(run)
    for name, engine in trained_models(config):
        if engine.optimizer is None or name == "ref":
            continue
        keys = [
            "optimizer.type",
            "use_lora",
            *(ADAPTER_KEYS if engine.use_lora and value_at(before, f"{name}.use_lora") else ()),
        ]
        folder, made = checkpoint / ("critic" if name == "critic" else ""), step_of(checkpoint.name)
        for key in keys:
            was, now = value_at(before, f"{name}.{key}", MISSING), attrgetter(key)(engine)
            if was is not MISSING and _normalized(was) != _normalized(now):
                reason = f"is {scalar_text(now)}, and the checkpoint of step {made} was made with {scalar_text(was)}"
                remedy = f"keep that value, or start a new run from those weights with {name}.path={folder}"
                yield Problem(f"{name}.{key}", f"{reason} and fits no other value; {remedy}")


def model_problems(config: "BaseExperimentConfig", directory: RunDirectory, host: HostInfo) -> Iterator[Problem]:
    """A `path` that now leads to a model of another shape than the checkpoint's. The same model elsewhere fits."""
    checkpoint = resumed_checkpoint(directory)
    if checkpoint is None:
        return
    before = run_config_values(Path(directory.path))
    for name, engine in trained_models(config):
        if engine.optimizer is None or name == "ref":
            continue
        was = (before.get(name) or {}).get("path")
        if not was or was == engine.path:
            continue
        old, new = (known_shape(path, host) for path in (was, engine.path))
        if old is None or new is None:
            continue
        if different := [key for key in SHAPE if getattr(old, key) != getattr(new, key)]:
            reason = f"is {engine.path}, whose {', '.join(different[:3])} differ from those of {was}, of which"
            remedy = "keep that path, or start a new run with trial_name="
            yield Problem(f"{name}.path", f"{reason} the checkpoint of step {step_of(checkpoint.name)} is; {remedy}")


def _normalized(value: Any) -> Any:
    """Lists of modules are unordered; an empty one means all modules."""
    if not isinstance(value, list):
        return value
    return frozenset([ALL]) if not value or ALL in value else frozenset(map(str, value))


def moved_folder_problems(config: "BaseExperimentConfig", directory: RunDirectory, host: HostInfo) -> Iterator[Problem]:
    """Folders of a resumed run that are missing behind their link, or that the configuration now puts elsewhere."""
    run = Path(directory.path)
    if not _resumes(config, directory) or not (run / ATTEMPT).is_file():
        return  # never started
    roots = other_roots(config, host.directory)
    for section, name in LINKS.items():
        key, root, target = f"{section}.fileroot", roots.get(section), link_target(run, name)
        if target is not None and not target.is_dir():
            yield Problem(key, f"{run / name} leads to {target}, which does not exist; mount that disk")
        elif target is not None and root is not None and not target.is_relative_to(root):
            yield Problem(key, f"is {root}, but this run has its {name} in {target}; leave it out")
        elif target is None and root is not None:
            reason = f"is {root}, but this run has its {name} in its own directory {run}; leave it out"
            yield Problem(key, reason)


def _resumes(config: "BaseExperimentConfig", directory: RunDirectory) -> bool:
    return directory.state == "continues" or config.resume is not None


def kept_folder_warnings(config: "BaseExperimentConfig", directory: RunDirectory, host: HostInfo) -> Iterator[Problem]:
    """Folders that stay where the first start put them, although the configuration no longer sets their key."""
    roots, run = other_roots(config, host.directory), Path(directory.path)
    for section, name in LINKS.items() if directory.state == "continues" else ():
        target = link_target(run, name)
        if target is not None and section not in roots and (run / ATTEMPT).is_file():
            yield Problem(f"{section}.fileroot", f"this run has its {name} in {target}, and keeps them there")


def no_run_to_resume(config: "BaseExperimentConfig", directory_problems: list[Problem]) -> list[Problem]:
    """Why `resume` fails, which is the same on every machine."""
    return [] if config.resume is None else directory_problems


def taken_directory(config: "BaseExperimentConfig", directory_problems: list[Problem]) -> list[Problem]:
    """Why the directory of a run that is named otherwise cannot be used here."""
    return directory_problems if config.resume is None else []
