"""Which finished groups are trained on, by the mean raw reward of their answers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from areal_like.rollout.conversation_facts import by_conversation


def mean_reward(facts: Sequence[Mapping[str, Any]]) -> float:
    """Over the answers of a group that have a reward; a conversation counts once."""
    rewards = [fact["reward"] for fact in by_conversation([*map(dict, facts)]) if fact["reward"] is not None]
    return math.fsum(rewards) / len(rewards)


@dataclass(frozen=True)
class Admission:
    """Limits of the mean reward, both inclusive. `mixed_only`: not exactly 0 or 1."""

    min_reward: float | None = None
    max_reward: float | None = None
    mixed_only: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether a group may be refused."""
        return self.mixed_only or self.min_reward is not None or self.max_reward is not None

    def admits(self, facts: Sequence[Mapping[str, Any]]) -> bool:
        if not self.is_limited:
            return True
        mean = mean_reward(facts)
        if self.mixed_only and mean in (0.0, 1.0):
            return False
        is_too_hard = self.min_reward is not None and mean < self.min_reward
        return not is_too_hard and not (self.max_reward is not None and mean > self.max_reward)
