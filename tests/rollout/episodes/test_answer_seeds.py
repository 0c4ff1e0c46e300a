"""What a reward draws by chance follows from the run's seed and the answer, so that a resumed run draws the same."""

import asyncio
from collections.abc import Iterator
from typing import Any

from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.rewards import Reward, RewardSpec
from areal_like.rollout.episodes.rewards.outcomes import RewardCounts
from tests.support.reward_parts import open_pool

ROW = {"prompt": "1+1="}
ANSWERS = [str(number) for number in range(40)]


def drawn(*seeds: int, processes: int = 1) -> list[list[float]]:
    async def main() -> list[list[float]]:
        async with open_pool(RewardSpec("random", {}, None, {}, ".", "."), 60.0, processes=processes) as pool:
            return [[reward.value for reward in await pool.score(ROW, ANSWERS, seed)] for seed in seeds]

    return asyncio.run(main())


def test_random_rewards_follow_from_the_seed():
    one, again, other = drawn(7, 7, 8, processes=2)
    assert one == again != other
    assert drawn(8) == [other], "in another process and order"


class SeenSeeds:
    """Stands in for the processes of rewards."""

    def __init__(self) -> None:
        self.counts, self.seeds = RewardCounts(), list[int]()

    async def try_score(self, row: Any, completions: Any, max_failed: int, seed: int) -> list[Reward | None]:
        self.seeds.append(seed)
        return [Reward(1.0) for _ in completions]


def test_each_group_and_each_call_has_a_seed_of_its_own():
    def seeds(lease_seed: int) -> list[int]:
        source = SeenSeeds()
        nothing: Any = None
        tools = WorkerTools(nothing, nothing, source, False, False, 0.0)
        episode = Episode(
            tools, {"id": "1", "server": {}, "n": 2, "purpose": "train", "split": "train", "seed": lease_seed}
        )

        async def main() -> None:
            for _ in range(2):
                await episode.score(ROW, ["1", "2"])

        asyncio.run(main())
        return source.seeds

    assert seeds(3) == seeds(3)
    assert len({*seeds(3), *seeds(4)}) == 4


def test_samples_that_are_played_at_the_same_time_draw_the_same_in_any_order():
    """A function of the seed, the row and the sample: not of which of them scores first."""

    def seeds(order: list[int]) -> dict[int, list[int]]:
        nothing: Any = None
        sources: dict[int, SeenSeeds] = {number: SeenSeeds() for number in order}
        episode = Episode(
            WorkerTools(nothing, nothing, nothing, False, False, 0.0),
            {"id": "1", "server": {}, "n": 3, "purpose": "train", "split": "train", "seed": 5},
        )
        turns = {number: asyncio.Event() for number in order}

        async def play(episode: Episode, numbers: Iterator[int]) -> None:
            number = next(numbers)
            await turns[number].wait()
            for _ in range(2):
                object.__setattr__(episode.tools, "rewards", sources[number])
                await episode.score(ROW, ["1"])
            turns[order[(order.index(number) + 1) % 3]].set()

        async def main() -> None:
            turns[order[0]].set()
            await episode.each_sample(play, iter(range(3)))

        asyncio.run(main())
        return {number: source.seeds for number, source in sources.items()}

    first = seeds([0, 1, 2])
    assert first == seeds([2, 0, 1])
    assert len({seed for each in first.values() for seed in each}) == 6
