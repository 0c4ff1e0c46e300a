"""One prompt, one answer."""

from typing import Any

from areal_like.rollout.episodes.episode import Episode
from areal_like.rollout.trajectory import Trajectory


class SingleTurn:
    """Answers the prompt of a row as often as the group is large, and has each answer rewarded.

    An answer that was cut off is rewarded like any other: it is `finish` that tells the trainer.
    """

    async def run(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory]:
        prompt_ids = episode.encode(row["prompt"], row.get("tools"))
        samples = await episode.generate(prompt_ids)
        rewards = await episode.score(row, samples)
        return [episode.trajectory(prompt_ids, sample, reward) for sample, reward in zip(samples, rewards, strict=True)]
