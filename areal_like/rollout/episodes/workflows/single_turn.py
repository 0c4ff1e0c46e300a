"""One prompt, one answer."""

from typing import Any

from areal_like.rollout.episodes.episode import Episode
from areal_like.rollout.trajectory import Trajectory


class SingleTurn:
    """Generates the answers of a group to the prompt of its row, and a reward for each.

    An answer that was cut off gets a reward like any other; `finish` marks it for the trainer.
    """

    needs_reward = True

    async def run(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory]:
        prompt_ids = episode.encode(row["prompt"], row.get("tools"))
        samples = await episode.generate(prompt_ids)
        rewards = await episode.try_score(row, samples)
        return [episode.trajectory(prompt_ids, sample, reward) for sample, reward in zip(samples, rewards, strict=True)]
