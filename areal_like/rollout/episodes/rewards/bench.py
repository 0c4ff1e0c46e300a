"""Scores saved answers by a reward, in the processes in which a run computes it, and times each of them."""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.reward import RewardConfig
from areal_like.observe.reward_report import ScoredAnswer
from areal_like.process import pulse
from areal_like.process.http import run_async
from areal_like.rollout.episodes.rewards.base import Reward, RewardError
from areal_like.rollout.episodes.rewards.limits import reward_limits
from areal_like.rollout.episodes.rewards.pool import RewardPool
from areal_like.rollout.episodes.rewards.spec import RewardSpec
from areal_like.rollout.episodes.rewards.sum_pool import pool_kind

SETUP_TIMEOUT_S = 120.0
AT_ONCE_ASYNC = 8
"""Answers of an async reward."""


@dataclass(frozen=True)
class SavedAnswer:
    """`row` has the prompt and the columns of the dataset. `place`: file and line."""

    place: str
    row: dict[str, Any]
    completion: str

    @property
    def prompt(self) -> str:
        return str(self.row["prompt"])


def score_answers(
    spec: RewardSpec,
    answers: Sequence[SavedAnswer],
    config: RewardConfig,
    progress: Callable[[int], None],
    setup_timeout_s: float = SETUP_TIMEOUT_S,
) -> list[ScoredAnswer]:
    """Several at once, each within the limits of `config`, without retries. Raises ConfigError if the reward cannot be
    loaded, or needs a column that rows lack."""
    return run_async(_score_answers(spec, answers, config, progress, setup_timeout_s))


async def _score_answers(
    spec: RewardSpec,
    answers: Sequence[SavedAnswer],
    config: RewardConfig,
    progress: Callable[[int], None],
    setup_timeout_s: float,
) -> list[ScoredAnswer]:
    processes = config.processes if isinstance(config.processes, int) else len(os.sched_getaffinity(0))
    waits = (config.timeout_s, 0, setup_timeout_s)
    pool = pool_kind(spec)(spec, *waits, processes, reward_limits(config))
    try:
        try:
            await pool.ready(answers[0].row)
        except ConfigError:
            if not pool.needs:  # it cannot be loaded
                raise
        check_columns(pool.needs, spec, answers)
        pulse.serves()
        # No more than are computed at once, so that the time of an answer is its own.
        places = asyncio.Semaphore(AT_ONCE_ASYNC if pool.is_async and not pool.is_split else processes)
        counts = itertools.count(1)

        async def score(answer: SavedAnswer) -> ScoredAnswer:
            async with places:
                scored = await _score(pool, answer)
            progress(next(counts))
            return scored

        return await asyncio.gather(*map(score, answers))
    finally:
        await pool.close()


def check_columns(needs: Sequence[str], spec: RewardSpec, answers: Sequence[SavedAnswer]) -> None:
    """Raises ConfigError with the first row that lacks each column."""
    problems = []
    for name in needs:
        lacking = next((each for each in answers if name not in each.row), None)
        if lacking is not None:
            message = f"has no {name!r}, which the reward {spec.title} needs; it has {', '.join(lacking.row)}"
            problems.append(Problem(lacking.place, f"{message}. Add the column, or give the reward {name}=VALUE"))
    if problems:
        raise ConfigError(problems)


async def _score(pool: RewardPool, answer: SavedAnswer) -> ScoredAnswer:
    start = time.perf_counter()
    reward: Reward | None = None
    error = ""
    try:
        [reward] = await pool.score(answer.row, [answer.completion])
    except RewardError as fault:
        error = str(fault)
    return ScoredAnswer(
        place=answer.place,
        prompt=answer.prompt,
        completion=answer.completion,
        value=None if reward is None else reward.value,
        seconds=time.perf_counter() - start,
        parts={} if reward is None else reward.parts,
        error=error,
        row=answer.row,
    )
