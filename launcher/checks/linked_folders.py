"""Parts of a run that its configuration puts below another folder: looked for when it goes on."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.process.run import ATTEMPT
from areal_like.process.run_links import LINKS, link_target, other_roots
from launcher.plan.plan import PlanProblem

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


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
