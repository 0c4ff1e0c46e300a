"""The pool of a weighted sum. Where some parts wait for services and others compute, each kind has processes of its
own: what computes would block what waits, past its deadline. So have parts that query the reward model beside others:
they get the secrets of the run, which code of a user never sees."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from areal_like.rollout.episodes.rewards import RewardSpec
from areal_like.rollout.episodes.rewards.base import Reward
from areal_like.rollout.episodes.rewards.pool import RewardPool
from areal_like.rollout.episodes.rewards.weighted_sum import added


class SumPool(RewardPool):
    """This pool computes the parts that wait, a second one those that compute, and first: an answer for which one of
    them fails costs no call of a service. A third one queries the reward model. Each has the reward's whole timeout.
    Where there are not several kinds, this pool computes all."""

    _computing: RewardPool | None = None
    _querying: RewardPool | None = None

    def __init__(self, spec: RewardSpec, *settings: Any, **more: Any) -> None:
        """As of RewardPool."""
        others = spec.without_model
        super().__init__(spec._replace(only=others) if others else spec, *settings, **more)
        if others:
            self._querying = self._pool_of([index for index in range(len(spec.rewards)) if index not in others])

    async def ready(self, row: dict[str, Any]) -> None:
        try:
            await super().ready(row)
        finally:
            if self._computing is None and (others := self._seats.others):
                self._computing = self._pool_of(others)
                self.is_split = True
        for pool in self._further:
            try:
                await pool.ready(row)
            finally:
                self.needs = sorted({*self.needs, *pool.needs})

    def _pool_of(self, parts: Sequence[int]) -> RewardPool:
        pool = RewardPool(self._spec._replace(only=parts), *self._settings)
        pool.counts = self.counts
        return pool

    @property
    def _further(self) -> list[RewardPool]:
        return [pool for pool in (self._computing, self._querying) if pool is not None]

    def send(
        self, row: dict[str, Any], completions: Sequence[str], seed: int | None = None, first: int = 0
    ) -> "list[asyncio.Future[Reward]]":
        if not self._further:
            return super().send(row, completions, seed, first)
        begins, *later = [each for each in (self._computing, self, self._querying) if each is not None]
        tasks: list[asyncio.Future[Reward]] = []
        begun = RewardPool.send(begins, row, completions, seed, first)
        for index, (future, completion) in enumerate(zip(begun, completions, strict=True), first):
            task = asyncio.create_task(self._add(future, later, row, completion, seed, index))
            task.add_done_callback(partial(_cancel, future))  # where it is cancelled before it begins
            tasks.append(task)
        return tasks

    async def _add(
        self,
        begun: "asyncio.Future[Reward]",
        later: Sequence[RewardPool],
        row: dict[str, Any],
        completion: str,
        seed: int | None,
        index: int,
    ) -> Reward:
        found = [await begun]
        futures = [RewardPool.send(pool, row, [completion], seed, index)[0] for pool in later]
        try:
            found += await asyncio.gather(*futures)
        finally:
            for future in futures:  # that are not done where one has failed
                future.cancel()
        return added(self._spec.rewards, found)

    async def close(self) -> None:
        for pool in self._further:
            await pool.close()
        await super().close()


def _cancel(future: "asyncio.Future[Reward]", _: object) -> None:
    future.cancel()


def pool_kind(spec: RewardSpec) -> type[RewardPool]:
    return SumPool if spec.parts else RewardPool
