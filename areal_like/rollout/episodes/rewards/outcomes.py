"""The rewards of several answers, and the failures that are counted."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from areal_like.rollout.episodes.rewards.base import Reward


@dataclass
class RewardCounts:
    """Failures, including those where a retry succeeded."""

    errors: int = 0
    timeouts: int = 0
    children_lost: int = 0
    infrastructure: int = 0
    """Failures that a reward blames on infrastructure, which are also among the errors, and those of workflows."""


async def rewards_of(futures: "Sequence[asyncio.Future[Reward]]", max_failed: int) -> list[Reward | None]:
    """None where it failed. Raises an error as soon as more than `max_failed` of them failed."""
    if len(futures) == 1 and not max_failed:  # as in an evaluation with one answer per row
        return [await futures[0]]
    waiting = set(futures)
    while waiting:
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
        errors = [fault for each in futures if each.done() and (fault := each.exception()) is not None]
        if len(errors) > max_failed:
            raise errors[0]
    return [None if each.exception() is not None else each.result() for each in futures]
