"""What samplers and gates see of a group: rewards and lengths of its answers, without their tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from areal_like.config.sections.reward import SCORE_PART
from areal_like.rollout.conversation_facts import CUT_OFF, by_conversation


@dataclass(frozen=True)
class ScoredGroup:
    """All answers to one row. A conversation is one answer. Rewards are those before shaping and normalization."""

    row: int
    """Its number in the training data."""
    environment: str
    """Empty where there are none."""
    rewards: tuple[float | None, ...]
    """None where the reward failed."""
    parts: tuple[Mapping[str, float], ...]
    answer_tokens: tuple[int, ...]
    truncated: tuple[bool, ...]
    version: int
    """Of the oldest weights that generated an answer: the number of steps before them."""

    @property
    def scores(self) -> list[float]:
        """The part `score` of each reward, or the reward if there is none."""
        scored = [(reward, parts) for reward, parts in zip(self.rewards, self.parts, strict=True)]
        return [parts.get(SCORE_PART, reward) for reward, parts in scored if reward is not None]

    @property
    def mean_reward(self) -> float:
        """Over the answers that have a reward."""
        rewards = [reward for reward in self.rewards if reward is not None]
        return math.fsum(rewards) / len(rewards)


def scored_group(row: int, facts: Sequence[Mapping[str, Any]]) -> ScoredGroup:
    answers = by_conversation([*map(dict, facts)])
    return ScoredGroup(
        row,
        answers[0].get("env", ""),
        tuple(each["reward"] for each in answers),
        tuple(each["rewards"] for each in answers),
        tuple(each["generated"] for each in answers),
        tuple(each["finish"] == CUT_OFF for each in answers),
        min(each["version_min"] for each in answers),
    )
