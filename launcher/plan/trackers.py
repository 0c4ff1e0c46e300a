"""Trackers that a run is to send its metrics to: their packages and keys must be here, where the launcher runs."""

from typing import TYPE_CHECKING

from areal_like.observe.trackers.needs import lacks
from launcher.env_file import variables
from launcher.plan.bench import SERVICES
from launcher.plan.host import Host
from launcher.plan.plan import Obstacle

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def lacks_trackers(config: "BaseExperimentConfig", host: Host) -> list[Obstacle]:
    """On a cluster as well: metrics are sent by the launcher. A run that measures sends none."""
    there = variables(config, host.directory)
    found = lacks(config.stats_logger, host.packages, there)
    return [Obstacle(lack.key, lack.reason) for lack in found if not (config.bench and lack.tracker in SERVICES)]
