"""`try`: some rows through data, template, workflow, reward and masks, as a worker does it, without a trainer."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from areal_like.config.problems import ConfigError, Problem
from areal_like.data.checked_rows import CheckedRows
from areal_like.data.datasets import load_datasets
from areal_like.data.row_table import hash_text
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.process.sandbox.sandbox import SANDBOX
from areal_like.process.seeds import derive_seed
from areal_like.rollout.episodes.episode import AnswerSource, WorkerTools, current_sample
from areal_like.rollout.episodes.generation_client import GenerationError, LeaseRoute
from areal_like.rollout.episodes.main import conversation_rules, open_tokenizer
from areal_like.rollout.episodes.own_settings import check_rewards, environment_settings, reward_pools
from areal_like.rollout.episodes.runner import EpisodeResult, EpisodeRunner
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


async def try_rows(config: Any, places: SearchFolders, opened: SourceOpener) -> AsyncIterator[TriedGroup]:
    """All rows at once; yields them in their order. Raises ConfigError as the start of a worker does."""
    os.environ[SANDBOX] = config.reward.sandbox  # for tools that run programs
    config = replace(config, evaluator=replace(config.evaluator, benchmarks=[]))  # their rewards are not tried
    rewards = reward_pools(config, places, processes=1)
    try:
        tokenizer = open_tokenizer(config, places.cwd)
        datasets = load_datasets(config, places, tokenizer)
        workflow = make_workflow(config.workflow.name, dict(config.workflow.args), places, config.agent)
        own = environment_settings(config, places)
        await rewards.ready(datasets)
        check_rewards(config, rewards, workflow, own)
        source, counts = await opened(tokenizer, datasets.train)
        # Answers whose reward fails are shown, however many they are.
        mismatched = config.rollout.allow_mismatched_sampling
        rules = conversation_rules(config, places.cwd)
        tools = WorkerTools(tokenizer, source, rewards.main, mismatched, False, 1.0, rewards.available, rules)
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
        await asyncio.gather(*(each.close() for each in (rewards.main, *rewards.own.values())))


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


class FileAnswers:
    """Answers from JSON lines with `completion` and `prompt`, the text of the row's prompt, or `row`, its number. In a
    workflow of several turns a completion is the list of a conversation's answers."""

    def __init__(self, file: Path, tokenizer: TextTokenizer, rows: CheckedRows) -> None:
        self._tokenizer = tokenizer
        self._by_row: dict[str, list[list[str]]] = {}
        self._turns: Counter[tuple[str, int]] = Counter()
        by_prompt: dict[str, int] = {}
        lines = _read(file)
        wanted = {_text(line["prompt"]) for _, line in lines if "row" not in line}
        for number in range(len(rows)) if wanted else ():
            prompt = _text(rows.rows[number].get("prompt"))
            if prompt in wanted:
                by_prompt.setdefault(prompt, number)
                if len(by_prompt) == len(wanted):
                    break
        for place, line in lines:
            row = line["row"] if "row" in line else by_prompt.get(_text(line["prompt"]))
            if type(row) is not int or not 0 <= row < len(rows):
                reason = f"no row of {rows.source} has this prompt" if row is None else f"there is no row {row!r}"
                raise ConfigError([Problem(place, f"{reason}; `prompt` is that of a row, or `row` its number")])
            completion = line["completion"]
            self._by_row.setdefault(str(row), []).append([completion] if isinstance(completion, str) else completion)

    @property
    def rows(self) -> dict[int, int]:
        """With their number of answers."""
        return {int(row): len(self._by_row[row]) for row in list(self._by_row)[:NUM_ROWS]}

    async def generate(self, route: LeaseRoute, group: dict[str, Any]) -> list[dict[str, Any]]:
        limit, conversations = group["sampling"]["max_new_tokens"], self._by_row[route.lease]
        if (number := current_sample.get()) is None:
            if any(len(each) > 1 for each in conversations):
                message = "`completion` is a list of several turns, and the workflow asks for one answer"
                raise GenerationError(f"row {route.lease}: {message}")
            return [self._sample(texts[0], limit) for texts in conversations]
        turn = self._turns[route.lease, number]
        self._turns[route.lease, number] += 1
        if turn >= len(conversations[number]):
            message = f"the workflow asks for answer {turn + 1} of conversation {number + 1}, and the file has {turn}"
            raise GenerationError(f"row {route.lease}: {message}; `completion` is the list of its answers")
        return [self._sample(conversations[number][turn], limit)]

    def _sample(self, text: str, limit: int) -> dict[str, Any]:
        end = self._tokenizer.eos_id
        ids = [*self._tokenizer.encode(text, special=False), *([] if end is None else [end])]
        finish, ids = ("stop", ids) if len(ids) <= limit else ("length", ids[:limit])
        return {"token_ids": ids, "logprobs": [0.0] * len(ids), "versions": [0] * len(ids), "finish": finish}


def _read(file: Path) -> list[tuple[str, dict[str, Any]]]:
    try:
        texts = file.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as fault:
        raise ConfigError([Problem("--answers", f"{file} cannot be read: {fault}")]) from fault
    lines = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        place = f"{file}:{number}"
        try:
            line = json.loads(text)
        except ValueError as fault:
            raise ConfigError([Problem(place, f"is not a line of JSON: {fault}")]) from fault
        if (
            not isinstance(line, dict)
            or not _is_completion(line.get("completion"))
            or not {"row", "prompt"} & set(line)
        ):
            message = "is an answer without a text `completion`, or a list of texts, and `prompt` or `row`"
            raise ConfigError([Problem(place, message)])
        lines.append((place, line))
    if not lines:
        raise ConfigError([Problem("--answers", f"{file} has no answers")])
    return lines


def _is_completion(value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    return bool(texts) and all(isinstance(text, str) for text in texts)


def _text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
