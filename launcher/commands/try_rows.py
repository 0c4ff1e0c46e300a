"""`try`: eight rows through data, template, answers, reward and masks, and whether there is something to learn."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from areal_like.config.control_characters import escape_controls
from areal_like.config.experiment import GRPOConfig
from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError, Problem
from areal_like.data.checked_rows import CheckedRows
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.data.votes import vote_rule
from areal_like.models import model_folder
from areal_like.process.exit_codes import DONE, FAILED
from areal_like.process.http import run_async
from areal_like.rollout.episodes.episode import AnswerSource
from areal_like.rollout.episodes.generation_client import GenerationError, LeaseRoute
from areal_like.rollout.episodes.trial import FileAnswers, spread_rows, try_rows
from areal_like.rollout.episodes.trial_report import group_report, verdict_of
from launcher.checks.packages import missing_packages, package_problems
from launcher.runs.fetch import fetch_from_hub


def try_experiment(loaded: Loaded, answers: str | None) -> int:
    """Prints the rows and the verdict; returns 1 where no row has answers."""
    config: Any = loaded.config
    if not isinstance(config, GRPOConfig):
        raise ConfigError([Problem("try", f"is for experiments that generate, not for {loaded.experiment}")])
    if problems := package_problems(missing_packages()):
        raise ConfigError(problems)
    fetch_from_hub(loaded)
    cwd = Path.cwd()

    def opened(tokenizer: TextTokenizer, rows: CheckedRows) -> tuple[AnswerSource, Sequence[int]]:
        if answers is not None:
            source = FileAnswers(Path(answers), tokenizer, rows)
            return source, source.rows
        return ModelAnswers(config, cwd), spread_rows(rows)

    groups, tokenizer = run_async(try_rows(config, SearchFolders(loaded.file.parent, cwd), opened))
    for group in groups:
        for line in group_report(group, tokenizer):
            print(escape_controls(line), flush=True)
    verdict = verdict_of(groups, vote_rule(config.actor))
    if not verdict.answers:
        print("no row has answers", file=sys.stderr)
        return FAILED
    print(f"\n{verdict.signal}: {verdict.facts_text}")
    for advice in verdict.advice:
        print(f"  {advice.key}: {advice.text}")
    return DONE


class ModelAnswers:
    """The model of the experiment, loaded into this process by the built-in engine."""

    def __init__(self, config: Any, cwd: Path) -> None:
        from areal_like.serving.engines.embedded.core.load_model import load_engine

        try:
            folder = model_folder(config.actor.path, cwd)
            here = replace(config.embedded, model_path=str(folder), device="auto", dtype=config.actor.dtype)
            self._engine = load_engine(here, folder, config.actor.trust_remote_code)
        except ValueError as fault:
            raise ConfigError([Problem("actor.path", str(fault))]) from fault

    async def generate(self, _: LeaseRoute, group: dict[str, Any]) -> list[dict[str, Any]]:
        from areal_like.serving.requests import BadRequest, parse_group

        try:
            [finished] = self._engine.generate([parse_group({**group, "priority": 0}, self._engine.vocab_size)])
        except (BadRequest, RuntimeError) as fault:
            raise GenerationError(str(fault)) from fault
        # The first version, as the engine knows of no served one.
        return [{**asdict(sample), "versions": [0] * len(sample.token_ids)} for sample in finished.samples]
