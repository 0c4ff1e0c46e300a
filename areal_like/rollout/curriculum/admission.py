"""The gates that come with the package: by the mean reward of a group, and by its advantages."""

from dataclasses import dataclass

from areal_like.rollout.curriculum.scored_group import ScoredGroup


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

    def admits(self, group: ScoredGroup) -> bool:
        return not self.refusal(group)

    def refusal(self, group: ScoredGroup) -> str:
        """`easy` or `hard` for a group that is refused."""
        if not self.is_limited:
            return ""
        mean = group.mean_reward
        if (self.mixed_only and mean == 0.0) or (self.min_reward is not None and mean < self.min_reward):
            return "hard"
        is_too_easy = (self.mixed_only and mean == 1.0) or (self.max_reward is not None and mean > self.max_reward)
        return "easy" if is_too_easy else ""


class MeanReward:
    """Admits groups whose mean reward is from `low` to `high`."""

    def __init__(self, low: float = 0.01, high: float = 0.99) -> None:
        if low > high:
            raise ValueError(f"low is {low}, above high={high}: no group would be admitted")
        self._admission = Admission(low, high)

    def admits(self, group: ScoredGroup) -> bool:
        return self._admission.admits(group)


class AdvantageRange:
    """Refuses groups whose rewards, less their mean, are all from `low` to `high`: by default those without spread."""

    def __init__(self, low: float = 0.0, high: float = 0.0) -> None:
        if low > high:
            raise ValueError(f"low is {low}, above high={high}: no group would be refused")
        self._low, self._high = low, high

    def admits(self, group: ScoredGroup) -> bool:
        rewards, mean = [each for each in group.rewards if each is not None], group.mean_reward
        if min(rewards) == max(rewards):  # their computed mean may differ by a rounding error
            return not self._low <= 0 <= self._high
        return not all(self._low <= reward - mean <= self._high for reward in rewards)
