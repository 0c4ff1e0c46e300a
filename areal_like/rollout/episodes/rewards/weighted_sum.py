"""A weighted sum of rewards. Each part is reported without its weight."""

import asyncio
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from areal_like.config.sections.reward import SCORE_PART
from areal_like.rollout.episodes.rewards.base import Reward, RewardCall, parse_reward


class Part(NamedTuple):
    """One reward of the sum."""

    label: str
    weight: float
    call: RewardCall


class LabelledPart(Protocol):
    @property
    def label(self) -> str: ...

    @property
    def weight(self) -> float: ...


class WeightedSum:
    """`reward.parts`: called like one reward."""

    others: Sequence[int] = ()
    """Indices of parts that other processes compute."""

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
        return self._await(values) if any(map(inspect.isawaitable, values)) else self._of(values)

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
        return self._of(values)

    def _of(self, values: Sequence[Any]) -> Reward:
        rewards = []
        for part, value in zip(self._parts, values, strict=True):
            try:
                rewards.append(parse_reward(value))
            except (ValueError, OverflowError) as fault:
                raise ValueError(f"part {part.label}: {fault}") from fault
        return self._total(rewards)

    def _total(self, rewards: Sequence[Reward]) -> Reward:
        return total(self._parts, rewards)


class PartialSum(WeightedSum):
    """Some parts of a sum, by their indices. Its reward is for `added`, which adds it to those of the other parts."""

    def __init__(self, parts: Mapping[int, Part], others: Sequence[int] = ()) -> None:
        super().__init__(list(parts.values()))
        self._indices, self.others = list(parts), others

    def _total(self, rewards: Sequence[Reward]) -> Reward:
        found: dict[str, float] = {}
        for index, reward in zip(self._indices, rewards, strict=True):
            found |= {str(index): reward.value, **{f"{index}/{name}": each for name, each in reward.parts.items()}}
        return Reward(0.0, found)


def total(parts: Sequence[LabelledPart], rewards: Sequence[Reward]) -> Reward:
    """The score that evaluations report is that of the first part, or its value if it has none."""
    found: dict[str, float] = {}
    for part, reward in zip(parts, rewards, strict=True):
        found |= {part.label: reward.value, **{f"{part.label}/{name}": each for name, each in reward.parts.items()}}
    found[SCORE_PART] = rewards[0].parts.get(SCORE_PART, rewards[0].value)
    return Reward(math.fsum(part.weight * each.value for part, each in zip(parts, rewards, strict=True)), found)


def added(parts: Sequence[LabelledPart], partial: Iterable[Reward]) -> Reward:
    """The reward of the whole sum."""
    values: dict[int, float] = {}
    named: dict[int, dict[str, float]] = {index: {} for index in range(len(parts))}
    for some in partial:
        for name, value in some.parts.items():
            index, slash, rest = name.partition("/")
            if slash:
                named[int(index)][rest] = value
            else:
                values[int(index)] = value
    return total(parts, [Reward(values[index], named[index]) for index in range(len(parts))])
