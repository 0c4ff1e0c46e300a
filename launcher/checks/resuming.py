"""What a run that goes on cannot be told otherwise: its checkpoint would not fit, or be past the end already."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation.models import trained_models
from areal_like.process.run import ATTEMPT
from areal_like.process.run_links import LINKS, link_target, other_roots
from launcher.plan.plan import PlanProblem, RunDirectory
from launcher.runs.checkpoints import step_folder
from launcher.runs.resumable import run_config_values

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


ADAPTER_KEYS = ("lora_rank", "lora_alpha", "target_modules", "lora_modules_to_save")
"""What says of which tensors an adapter consists, and what they mean."""
ALL = "all-linear"


def resume_problems(config: "BaseExperimentConfig", directory: RunDirectory) -> Iterator[PlanProblem]:
    """Looks at the configuration that the run was started with the last time, and at where it would go on."""
    step, run = directory.step, Path(directory.path)
    if directory.state != "continues" or step is None:
        return
    from areal_like.config.describe.yaml_text import scalar_text  # these bring yaml
    from areal_like.config.loaded import MISSING, value_at

    total = config.total_train_steps
    if total is not None and total < step and not config.recover.skip_progress:
        earlier = ", or go on from an earlier one with resume_step=" if config.resume is not None else ""
        reason = f"is {total}, and the checkpoint that {run} goes on from has {step} steps"
        yield PlanProblem("total_train_steps", f"{reason}; set it to more than {step}{earlier}")
    before = run_config_values(run)
    for name, engine in trained_models(config):
        if engine.optimizer is None or name == "ref":
            continue
        keys = [
            "optimizer.type",
            "use_lora",
            *(ADAPTER_KEYS if engine.use_lora and value_at(before, f"{name}.use_lora") else ()),
        ]
        folder = step_folder(run, step) / ("critic" if name == "critic" else "")
        for key in keys:
            was, now = value_at(before, f"{name}.{key}", MISSING), _now(engine, key)
            if was is not MISSING and _meant(was) != _meant(now):
                reason = f"is {scalar_text(now)}, and the checkpoint of step {step} was made with {scalar_text(was)}"
                ways = f"go on with that, or begin a run of its own from those weights with {name}.path={folder}"
                yield PlanProblem(f"{name}.{key}", f"{reason} and fits nothing else; {ways}")


def _now(engine: Any, key: str) -> Any:
    for name in key.split("."):
        engine = getattr(engine, name)
    return engine


def _meant(value: Any) -> Any:
    """Lists of modules have no order, and an empty one of those that get an adapter means all."""
    if not isinstance(value, list):
        return value
    return frozenset([ALL]) if not value or ALL in value else frozenset(map(str, value))


def moved_folder_problems(config: "BaseExperimentConfig", directory: Path, cwd: Path) -> Iterator[PlanProblem]:
    """What stands against going on with a run: a part that is not where its link leads, or is wanted elsewhere."""
    if not (directory / ATTEMPT).is_file():
        return  # it has never begun
    wanted = other_roots(config, cwd)
    for section, name in LINKS.items():
        key, root, there = f"{section}.fileroot", wanted.get(section), link_target(directory, name)
        if there is not None and not there.is_dir():
            yield PlanProblem(key, f"{directory / name} leads to {there}, which is not there; bring that disk back")
        elif there is not None and root is not None and not there.is_relative_to(root):
            yield PlanProblem(key, f"is {root}, but this run has its {name} in {there}; leave it out")
        elif there is None and root is not None:
            reason = f"is {root}, but this run has its {name} in its own directory {directory}; leave it out"
            yield PlanProblem(key, reason)


def kept_folder_warnings(config: "BaseExperimentConfig", directory: Path, cwd: Path) -> Iterator[str]:
    """Of a run that goes on: the parts that stay where its first start has put them, where nothing says so now."""
    wanted = other_roots(config, cwd)
    for section, name in LINKS.items():
        there = link_target(directory, name)
        if there is not None and section not in wanted and (directory / ATTEMPT).is_file():
            yield f"{section}.fileroot: this run has its {name} in {there}, and keeps them there"
