"""Scores saved answers by a reward, in the processes in which a run computes it, and times each of them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from areal_like.config.problems import ConfigError, Problem
from areal_like.observe.reward_report import ScoredAnswer
from areal_like.process.http import run_async
from areal_like.rollout.episodes.rewards.base import Reward, RewardError
from areal_like.rollout.episodes.rewards.pool import RewardPool
from areal_like.rollout.episodes.rewards.spec import RewardSpec

SETUP_TIMEOUT_S = 120.0


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
    spec: RewardSpec, answers: Sequence[SavedAnswer], timeout_s: float, progress: Callable[[int], None]
) -> list[ScoredAnswer]:
    """One by one, without retries. Raises ConfigError if the reward cannot be loaded, or needs a column that rows
    lack."""
    return run_async(_score_answers(spec, answers, timeout_s, progress))


async def _score_answers(
    spec: RewardSpec, answers: Sequence[SavedAnswer], timeout_s: float, progress: Callable[[int], None]
) -> list[ScoredAnswer]:
    pool = RewardPool(spec, timeout_s, retries=0, setup_timeout_s=SETUP_TIMEOUT_S)
    try:
        try:
            await pool.ready(answers[0].row)
        except ConfigError:
            if not pool.needs:  # it cannot be loaded
                raise
        check_columns(pool.needs, spec, answers)
        scored = []
        for answer in answers:
            scored.append(await _score(pool, answer))
            progress(len(scored))
        return scored
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
    )
