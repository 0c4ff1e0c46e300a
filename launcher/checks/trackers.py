"""Trackers that a run is to send its metrics to: their packages and keys must be here, where the launcher runs."""

from typing import TYPE_CHECKING

from areal_like.observe.trackers.requirements import missing_requirements
from launcher.env_file import run_environment
from launcher.plan.bench import REMOTE_TRACKERS
from launcher.plan.host import HostInfo
from launcher.plan.plan import PlanProblem

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def tracker_problems(config: "BaseExperimentConfig", host: HostInfo) -> list[PlanProblem]:
    """On a cluster as well: metrics are sent by the launcher. A run that measures sends none."""
    there = run_environment(config, host.directory)
    found = missing_requirements(config.stats_logger, host.packages, there)
    return [
        PlanProblem(lack.key, lack.reason) for lack in found if not (config.bench and lack.tracker in REMOTE_TRACKERS)
    ]
