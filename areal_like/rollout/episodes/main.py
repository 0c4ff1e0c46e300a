"""Start of an episodes worker: imports and checks the user's code before it contacts the controller."""

import asyncio
import logging
import math
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from areal_like.config.allocation.models import uses_api
from areal_like.config.problems import ConfigError
from areal_like.data.data_record import RECORD
from areal_like.data.datasets import CheckedRows, Datasets, load_datasets
from areal_like.data.earlier_results import earlier_difficulty
from areal_like.data.first_tokens import first_tokens
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders, config_error
from areal_like.discovery import Entry, NameStore, open_name_store, parse_entry
from areal_like.models import model_folder
from areal_like.process import garbage, pulse
from areal_like.process.http import HttpClient, run_async
from areal_like.process.identity import CONTROLLER, SERVER, Identity, hide_key, token
from areal_like.process.loop_watch import LoopWatch
from areal_like.process.patience import patience_s
from areal_like.process.proxy_variables import around_proxy
from areal_like.process.run import Run
from areal_like.process.sandbox.sandbox import SANDBOX
from areal_like.process.wait import NamedWait
from areal_like.rollout.episodes.api.chat_client import ChatClient
from areal_like.rollout.episodes.api.text_codec import TextCodec
from areal_like.rollout.episodes.blocked_loop import block_report
from areal_like.rollout.episodes.context_length import context_length
from areal_like.rollout.episodes.controller_client import ControllerClient
from areal_like.rollout.episodes.conversation import ConversationRules
from areal_like.rollout.episodes.episode import WorkerTools
from areal_like.rollout.episodes.generation_client import GenerationClient
from areal_like.rollout.episodes.own_settings import (
    check_rewards,
    close_environments,
    environment_settings,
    reward_pools,
    scored_by_themselves,
    waits_for_others,
)
from areal_like.rollout.episodes.runner import EpisodeRunner, OwnSettings
from areal_like.rollout.episodes.text_environments.pool import EnvironmentPools
from areal_like.rollout.episodes.worker import EpisodeWorker
from areal_like.rollout.episodes.workflows import make_workflow
from areal_like.rollout.settings import rollout_settings
from areal_like.weights.probe import PROBE_TOKENS

log = logging.getLogger(__name__)


def main(run: Run, me: Identity) -> None:
    os.environ |= around_proxy(os.environ)  # for the clients of agents, which find the gateway on the loopback
    limit_s = run.config.workflow.block_timeout_s
    watch = None if limit_s is None else LoopWatch(limit_s, block_report(run, me))
    try:
        run_async(_main(run, me, watch))
    finally:
        if watch is not None:
            watch.close()


async def _main(run: Run, me: Identity, watch: LoopWatch | None = None) -> None:
    config, rollout = run.config, run.config.rollout
    os.environ[SANDBOX] = config.reward.sandbox  # for tools that run programs
    hide_key(config.rollout)
    places = SearchFolders(run.folder, run.cwd)
    rewards = reward_pools(config, places)
    environments = EnvironmentPools(places, config.log.environment_level, config.environments.max_memory_gb)
    own: dict[str, OwnSettings] = {}
    try:
        tokenizer = open_tokenizer(config, run.cwd)
        datasets = load_datasets(data_config(config), places, tokenizer, run.directory / RECORD)
        workflow = make_workflow(config.workflow.name, dict(config.workflow.args), places, config.agent)
        own = environment_settings(config, places, workflow)
        await rewards.ready(datasets, scored_by_themselves(own))
        check_rewards(config, rewards, workflow, own, datasets)
        with open_name_store(run, me) as names:
            async with HttpClient(me, token()) as http:
                limit_s = patience_s(config, CONTROLLER, SERVER)
                controller = ControllerClient(http, me, lambda waiting: _find(names, waiting), limit_s)
                client = _answer_source(config, http, controller)
                tools = WorkerTools(
                    *(tokenizer, client, rewards.main),
                    rollout.allow_mismatched_sampling,
                    rollout.enable_rollout_tracing,
                    config.reward.max_failed_share,
                    rewards.available,
                    conversation_rules(config, run.cwd),
                    keeps_messages=rollout.dump_to_file or config.log.data,
                    environments=environments,
                )
                difficulty = earlier_difficulty(config, datasets.train)
                await controller.post("/hello", _hello(me, datasets, tokenizer, difficulty))
                log.info("working: %d rows of %s", len(datasets.train), datasets.train.source)
                runner = EpisodeRunner(tools, datasets, workflow, rollout.check_trajectory_format, own)
                keeps_order = not (uses_api(config) or waits_for_others(datasets, workflow, own))
                runner = replace(runner, keeps_order=keeps_order)
                pulse.serves()
                garbage.settle()
                try:
                    async with watch.watching() if watch is not None else nullcontext():
                        await EpisodeWorker(controller, runner, max_in_flight(config)).work()
                finally:
                    await tools.gateway.close()
                    await client.close()
    except ConfigError as error:
        if error.__cause__ is not None:
            log.error("the configuration cannot be used; the error was:", exc_info=error.__cause__)
        raise
    finally:
        pools = (rewards.main, *rewards.own.values())
        await asyncio.gather(close_environments(own), *(each.close() for each in pools))
        await environments.close()


def _answer_source(config: Any, http: HttpClient, controller: ControllerClient) -> ChatClient | GenerationClient:
    rollout = config.rollout
    if not uses_api(config):
        return GenerationClient(http, rollout.request_timeout, rollout.request_retries, controller.another_server)
    at_once = math.ceil(rollout_settings(config).max_concurrent / rollout.num_episode_workers)
    key = os.environ.get(rollout.api_key_var, "")
    return ChatClient(config.actor.path, key, at_once, rollout.request_retries, rollout.request_timeout)


def data_config(config: Any) -> Any:
    """A service limits prompts itself, as nobody else knows their tokens."""
    if not uses_api(config):
        return config
    valid = None if config.valid_dataset is None else replace(config.valid_dataset, max_length=None)
    benchmarks = [replace(each, max_length=None) for each in config.evaluator.benchmarks]
    evaluator, train = replace(config.evaluator, benchmarks=benchmarks), replace(config.train_dataset, max_length=None)
    return replace(config, train_dataset=train, valid_dataset=valid, evaluator=evaluator)


def max_in_flight(config: Any) -> int:
    """Most leases of this worker at a time: its share of the training groups and evaluated rows that may run."""
    settings = rollout_settings(config)
    evaluated = max((each.concurrent for each in settings.evaluated), default=0)
    workers: int = config.rollout.num_episode_workers
    return math.ceil((settings.max_concurrent + evaluated) / workers)


def open_tokenizer(config: Any, cwd: Path) -> TextTokenizer:
    if uses_api(config):
        return cast(TextTokenizer, TextCodec())
    path = config.tokenizer_path or config.actor.path
    try:
        return TextTokenizer(model_folder(path, cwd), config.chat_template_args)
    except ValueError as fault:
        raise config_error("tokenizer_path", str(fault).removeprefix("tokenizer_path: "), fault) from fault


def conversation_rules(config: Any, cwd: Path) -> ConversationRules:
    """The tokens of a service are unknown, and so is how much it takes."""
    rollout, length = config.rollout, None if uses_api(config) else context_length(config, cwd)
    return ConversationRules(rollout.trajectory_strategy, rollout.mask_env_responses, length)


def _find(names: NameStore, waiting: NamedWait) -> Entry:
    return parse_entry(names.wait(Identity(CONTROLLER, 0).name, waiting))


def _hello(me: Identity, datasets: Datasets, tokenizer: TextTokenizer, difficulty: str) -> dict[str, Any]:
    valid = None if datasets.valid is None else _describe(datasets.valid)
    probe_tokens = first_tokens(datasets.train.rows, tokenizer, PROBE_TOKENS)
    benchmarks = {split: _describe(rows) for split, rows in datasets.benchmarks.items()}
    train = {**_describe(datasets.train), "probe_tokens": probe_tokens, "difficulty": difficulty}
    train["environments"] = [[part.name, len(part)] for part in datasets.train.parts]
    described = {"train": train, "valid": valid, "benchmarks": benchmarks}
    return {"worker": me.name, "incarnation": me.incarnation, "datasets": described}


def _describe(rows: CheckedRows) -> dict[str, Any]:
    return {"rows": len(rows), "digest": rows.digest}
