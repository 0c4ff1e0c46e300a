"""A weighted sum of rewards. Each part is reported without its weight."""

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from areal_like.config.sections.reward import SCORE_PART
from areal_like.rollout.episodes.rewards.base import Reward, RewardCall, parse_reward


class Part(NamedTuple):
    """One reward of the sum."""

    label: str
    weight: float
    call: RewardCall


class WeightedSum:
    """`reward.parts`: called like one reward."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self.is_async = any(part.call.is_async for part in parts)
        self.needs = sorted({name for part in parts for name in part.call.needs})
        """Values that each row must have."""

    def __call__(self, prompt: str, completion: str, row: Mapping[str, Any], seed: int = 0) -> Any:
        # Those that wait begin last, so that none of them has begun when another one raises.
        order = sorted(range(len(self._parts)), key=lambda index: self._parts[index].call.is_async)
        returned = {index: self._parts[index].call(prompt, completion, row, seed) for index in order}
        values = [returned[index] for index in range(len(order))]
        return self._await(values) if any(map(inspect.isawaitable, values)) else self._add(values)

    def prepare(self) -> None:
        for part in self._parts:
            part.call.prepare()

    async def aclose(self) -> None:
        for part in self._parts:
            await part.call.aclose()

    async def _await(self, values: list[Any]) -> Reward:
        waiting = [index for index, value in enumerate(values) if inspect.isawaitable(value)]
        for index, value in zip(waiting, await asyncio.gather(*(values[index] for index in waiting)), strict=True):
            values[index] = value
        return self._add(values)

    def _add(self, values: Sequence[Any]) -> Reward:
        """The score that evaluations report is that of the first part, or its value if it has none."""
        parts: dict[str, float] = {}
        rewards = []
        for part, value in zip(self._parts, values, strict=True):
            try:
                reward = parse_reward(value)
            except (ValueError, OverflowError) as fault:
                raise ValueError(f"part {part.label}: {fault}") from fault
            rewards.append(reward)
            parts[part.label] = reward.value
            parts |= {f"{part.label}/{name}": each for name, each in reward.parts.items()}
        parts[SCORE_PART] = rewards[0].parts.get(SCORE_PART, rewards[0].value)
        total = math.fsum(part.weight * reward.value for part, reward in zip(self._parts, rewards, strict=True))
        return Reward(total, parts)
