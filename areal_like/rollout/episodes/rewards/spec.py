"""The reward of a configuration, as what a process needs to import it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.sections.reward import REWARD_MODEL, SANDBOXES, NamedReward, RewardConfig, named_rewards


class RewardSpec(NamedTuple):
    """`parts` have the keys of RewardPartConfig as entries; `only` are the indices of those that are loaded, none: all.
    Without a name and parts it is the reward of the task."""

    name: str | None
    args: dict[str, Any]
    task: str | None
    task_args: dict[str, Any]
    folder: str
    cwd: str
    parts: Sequence[dict[str, Any]] = ()
    sandbox: str = SANDBOXES[0]
    only: Sequence[int] = ()

    @property
    def rewards(self) -> list[NamedReward]:
        return named_rewards(self.name, self.args, self.parts)

    @property
    def loaded_rewards(self) -> dict[int, NamedReward]:
        """By their indices."""
        return {index: each for index, each in enumerate(self.rewards) if not self.only or index in self.only}

    @property
    def title(self) -> str:
        """Its name in messages."""
        if self.name is not None:
            return self.name
        return (
            f"the sum of {', '.join(each.label for each in self.rewards)}"
            if self.parts
            else f"the reward of {self.task}"
        )

    @property
    def key(self) -> str:
        return "reward.parts" if self.parts else "reward.name"

    @property
    def queries_model(self) -> bool:
        """Whether it gets the secrets of the run, to query its reward model: never where other code is loaded, too."""
        return {each.name for each in self.loaded_rewards.values()} == {REWARD_MODEL}

    @property
    def without_model(self) -> list[int]:
        """Indices of the other parts of a sum with parts that query the reward model; empty where there are not both
        kinds."""
        others = [index for index, each in enumerate(self.rewards) if each.name != REWARD_MODEL]
        return others if len(others) < len(self.rewards) else []


def reward_spec(
    reward: RewardConfig, task: str | None, task_args: dict[str, Any], folder: Path, cwd: Path
) -> RewardSpec:
    parts = [vars(part) for part in reward.parts]
    return RewardSpec(
        reward.name, dict(reward.args), task, dict(task_args), str(folder), str(cwd), parts, reward.sandbox
    )
