"""What a workflow is: how one row becomes the trajectories of its group."""

from typing import Any, Protocol

from areal_like.rollout.episodes.episode import Episode
from areal_like.rollout.trajectory import Trajectory


class Workflow(Protocol):
    """A class made once in each worker, with `workflow.args`; many of its runs are under way at the same time."""

    async def run(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory] | None:
        """The trajectories of one group; None leaves the row out this time. An exception is a failure: it is counted
        and the row tried again."""
        ...
