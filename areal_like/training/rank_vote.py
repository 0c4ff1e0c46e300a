"""A vote of all ranks, independent of the collectives of training."""

from datetime import timedelta

import torch
import torch.distributed as dist

from areal_like.process.errors import TimedOut
from areal_like.training.world import World


class RankVote:
    """Uses its own process group on the CPU, so that a background thread can vote without interleaving with the
    collectives of training. All ranks must create one at the same time."""

    def __init__(self, world: World, timeout_s: float, key: str) -> None:
        """`key` is the configuration key of the timeout, for messages."""
        self._group, self._limit = None, f"{key}: another rank did not report within {timeout_s} s"
        if world.size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def all_succeeded(self, succeeded: bool) -> bool:
        """Whether all ranks pass True; waits for all of them."""
        if self._group is None:
            return succeeded
        votes = torch.tensor([int(succeeded)])
        try:
            dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=self._group)
        except RuntimeError as fault:
            raise TimedOut(f"{self._limit} that it wrote its part of a checkpoint: {fault}") from fault
        return bool(votes.item())
