"""`try`: some rows through data, template, workflow, reward and masks, as a worker does it, without a trainer."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from areal_like.data.checked_rows import CheckedRows
from areal_like.data.datasets import load_datasets
from areal_like.data.row_table import hash_text
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.process.identity import hide_key
from areal_like.process.sandbox.sandbox import SANDBOX
from areal_like.process.seeds import derive_seed
from areal_like.rollout.episodes.episode import AnswerSource, WorkerTools
from areal_like.rollout.episodes.main import conversation_rules, open_tokenizer
from areal_like.rollout.episodes.own_settings import (
    check_rewards,
    close_environments,
    environment_settings,
    reward_pools,
    scored_by_themselves,
)
from areal_like.rollout.episodes.runner import EpisodeResult, EpisodeRunner, OwnSettings
from areal_like.rollout.episodes.text_environments.pool import EnvironmentPools
from areal_like.rollout.episodes.workflows import make_workflow
from areal_like.rollout.groups import TRAIN
from areal_like.rollout.sampling import sampling_params
from areal_like.rollout.trajectory import Trajectory, unpack_group

NUM_ROWS = 8

SourceOpener = Callable[[TextTokenizer, CheckedRows], Awaitable[tuple[AnswerSource, Mapping[int, int | None]]]]
"""Returns what answers, and the rows to try with their number of answers; None: `gconfig.n_samples`."""


class TriedGroup(NamedTuple):
    """A row with its answers, or the error that it ended with."""

    place: str
    tokenizer: TextTokenizer
    facts: Sequence[dict[str, Any]]
    trajectories: Sequence[Trajectory]
    error: str = ""


async def try_rows(config: Any, places: SearchFolders, opened: SourceOpener, record: Path) -> AsyncIterator[TriedGroup]:
    """All rows at once; yields them in their order. Raises ConfigError as the start of a worker does. `record`: as of a
    run."""
    os.environ[SANDBOX] = config.reward.sandbox  # for tools that run programs
    hide_key(config.rollout)
    config = replace(config, evaluator=replace(config.evaluator, benchmarks=[]))  # their rewards are not tried
    rewards = reward_pools(config, places, processes=1)
    environments = EnvironmentPools(places, config.log.environment_level, config.environments.max_memory_gb)
    own: dict[str, OwnSettings] = {}
    try:
        tokenizer = open_tokenizer(config, places.cwd)
        datasets = load_datasets(config, places, tokenizer, record)
        workflow = make_workflow(config.workflow.name, dict(config.workflow.args), places, config.agent)
        own = environment_settings(config, places, workflow)
        await rewards.ready(datasets, scored_by_themselves(own))
        check_rewards(config, rewards, workflow, own, datasets)
        source, counts = await opened(tokenizer, datasets.train)
        # Answers whose reward fails are shown, however many they are.
        mismatched = config.rollout.allow_mismatched_sampling
        rules = conversation_rules(config, places.cwd)
        tools = WorkerTools(
            *(tokenizer, source, rewards.main, mismatched, False, 1.0, rewards.available, rules),
            environments=environments,
        )
        runner = EpisodeRunner(tools, datasets, workflow, config.rollout.check_trajectory_format, own)
        rows = datasets.train.inspect(list(counts))
        results = [
            asyncio.create_task(runner.run(_lease(config, group, row.row, hash_text(row.hash), counts[row.row])))
            for group, row in enumerate(rows)
        ]
        try:
            for row, result in zip(rows, results, strict=True):
                yield _tried(datasets.train.place(row.row), tokenizer, await result)
        finally:
            for result in results:
                result.cancel()
            await asyncio.gather(*results, return_exceptions=True)
            await tools.gateway.close()
    finally:
        pools = (rewards.main, *rewards.own.values())
        await asyncio.gather(close_environments(own), *(each.close() for each in pools))
        await environments.close()


def _lease(config: Any, group: int, row: int, row_hash: str, num_answers: int | None) -> dict[str, Any]:
    return {
        "id": str(row),
        "group": group,
        "purpose": TRAIN,
        "split": "train",
        "row": row,
        "row_hash": row_hash,
        "server": "",
        "n": num_answers or config.gconfig.n_samples,
        "seed": derive_seed(config.seed, "try", row),
        "sampling": sampling_params(config.gconfig),
    }


def _tried(place: str, tokenizer: TextTokenizer, result: EpisodeResult) -> TriedGroup:
    header, blob = result
    facts = header.get("facts", [])
    trajectories = unpack_group(facts, blob) if blob is not None else []
    error = header.get("error", "" if trajectories else "rejected by the workflow")
    return TriedGroup(place, tokenizer, facts, trajectories, error)


def spread_rows(rows: CheckedRows) -> dict[int, None]:
    """Evenly over the dataset, without those that are too long."""
    numbers = np.unique(np.linspace(0, len(rows) - 1, 4 * NUM_ROWS).astype(np.int64)).tolist()
    short = [row.row for row in rows.inspect(numbers) if not row.is_too_long]
    chosen = np.unique(np.linspace(0, len(short) - 1, min(NUM_ROWS, len(short))).astype(np.int64))
    return dict.fromkeys(short[index] for index in chosen.tolist())
