"""The pool of a weighted sum. Where some parts wait for services and others compute, each kind has processes of its
own: what computes would block what waits, past its deadline."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from areal_like.rollout.episodes.rewards import RewardSpec
from areal_like.rollout.episodes.rewards.base import Reward
from areal_like.rollout.episodes.rewards.pool import RewardPool
from areal_like.rollout.episodes.rewards.weighted_sum import added


class SumPool(RewardPool):
    """The parts that wait are computed by this pool; the others by a second one, and first: an answer for which one of
    them fails costs no call of a service. Each kind has the reward's whole timeout."""

    _computing: RewardPool | None = None

    async def ready(self, row: dict[str, Any]) -> None:
        try:
            await super().ready(row)
        finally:
            if self._computing is None and (others := self._seats.others):
                self._computing = RewardPool(self._spec._replace(only=others), *self._settings)
                self._computing.counts = self.counts
                self.is_split = True
        if self._computing is not None:
            try:
                await self._computing.ready(row)
            finally:
                self.needs = sorted({*self.needs, *self._computing.needs})

    def send(
        self, row: dict[str, Any], completions: Sequence[str], seed: int | None = None, first: int = 0
    ) -> "list[asyncio.Future[Reward]]":
        if self._computing is None:
            return super().send(row, completions, seed, first)
        tasks: list[asyncio.Future[Reward]] = []
        computed = self._computing.send(row, completions, seed, first)
        for index, (future, completion) in enumerate(zip(computed, completions, strict=True), first):
            task = asyncio.create_task(self._add(future, row, completion, seed, index))
            task.add_done_callback(partial(_cancel, future))  # where it is cancelled before it begins
            tasks.append(task)
        return tasks

    async def _add(
        self, computed: "asyncio.Future[Reward]", row: dict[str, Any], completion: str, seed: int | None, index: int
    ) -> Reward:
        first = await computed
        (waiting,) = super().send(row, [completion], seed, index)
        return added(self._spec.rewards, [first, await waiting])

    async def close(self) -> None:
        if self._computing is not None:
            await self._computing.close()
        await super().close()


def _cancel(future: "asyncio.Future[Reward]", _: object) -> None:
    future.cancel()


def pool_kind(spec: RewardSpec) -> type[RewardPool]:
    return SumPool if spec.parts else RewardPool
