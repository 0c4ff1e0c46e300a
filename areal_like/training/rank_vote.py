"""What the ranks tell each other beside training."""

from datetime import timedelta

import torch
import torch.distributed as dist

from areal_like.process.errors import TimedOut
from areal_like.training.world import World


class RankVote:
    """Over a group of its own, on the host: whatever a thread asks here never comes between training's own calls. All
    ranks make one at the same time."""

    def __init__(self, world: World, timeout_s: float, key: str) -> None:
        """`key` is where the limit is named."""
        self._group, self._limit = None, f"{key}: another rank did not say within {timeout_s} s"
        if world.size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def all_succeeded(self, is_well: bool) -> bool:
        """Waits for every rank's answer."""
        if self._group is None:
            return is_well
        said = torch.tensor([int(is_well)])
        try:
            dist.all_reduce(said, op=dist.ReduceOp.MIN, group=self._group)
        except RuntimeError as fault:
            raise TimedOut(f"{self._limit} that its part of a checkpoint is written: {fault}") from fault
        return bool(said.item())
