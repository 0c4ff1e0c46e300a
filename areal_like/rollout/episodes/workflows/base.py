"""Workflow: turns a row into the trajectories of its group."""

from typing import Any, Protocol

from areal_like.rollout.episodes.episode import Episode
from areal_like.rollout.trajectory import Trajectory


class Workflow(Protocol):
    """Created once per worker with `workflow.args`; many of its runs are active at the same time. With
    `needs_reward = True` in its class, a run without a reward is refused before the first lease."""

    async def run(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory] | None:
        """The trajectories of one group; None leaves the row out this time. An exception is a failure: it is
        counted and the row is retried."""
        ...
