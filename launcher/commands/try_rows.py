"""`try`: eight rows through data, template, answers, reward and masks, and whether there is something to learn."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_like.config.control_characters import escape_controls
from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError, Problem
from areal_like.data.checked_rows import CheckedRows
from areal_like.data.data_record import temporary_record
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.data.votes import vote_rule
from areal_like.process.exit_codes import DONE, FAILED
from areal_like.process.http import run_async
from areal_like.rollout.episodes.episode import AnswerSource
from areal_like.rollout.episodes.file_answers import FileAnswers
from areal_like.rollout.episodes.try_report import NO_ANSWERS, REPORT, report
from areal_like.rollout.episodes.try_rows import try_rows
from launcher.checks.packages import missing_packages, package_problems
from launcher.commands.evaluate import check_answers
from launcher.plan.plan import Plan
from launcher.plan.purpose import Purpose
from launcher.runs.fetch import fetch_from_hub
from launcher.supervisor.added_lines import AddedLines
from launcher.supervisor.serving_run import lock_serving_run


def check_experiment(loaded: Loaded) -> None:
    """Raises ConfigError for one that does not generate."""
    config: Any = loaded.config
    check_answers("try", loaded)
    if config.resume is not None:
        message = "continues a run, and try starts none; name its model: --config RUN/config.yaml actor.path=CHECKPOINT"
        raise ConfigError([Problem("resume", message)])
    if config.rollout.server_type == "openai":
        raise ConfigError(
            [
                Problem(
                    "rollout.server_type",
                    "try shows the token ids of prompts and answers, and an API gives none; leave server_type and "
                    "server_addresses out, so that servers of this machine answer, or give answers as a file: "
                    "--answers FILE. `eval --config FILE` evaluates the model behind an API",
                )
            ]
        )


def try_answers(loaded: Loaded, file: Path) -> int:
    """Answers from a file need no other process. Prints the rows and the verdict; returns 1 where no row has
    answers."""
    config: Any = loaded.config
    if problems := package_problems(missing_packages()):
        raise ConfigError(problems)
    fetch_from_hub(loaded)

    async def opened(tokenizer: TextTokenizer, rows: CheckedRows) -> tuple[AnswerSource, Mapping[int, int | None]]:
        source = FileAnswers(file, tokenizer, rows)
        return source, source.rows

    def show(text: str) -> None:
        print(escape_controls(text), flush=True)

    with temporary_record() as record:
        groups = try_rows(config, SearchFolders(loaded.folder, Path.cwd()), opened, record)
        if run_async(report(groups, vote_rule(config.actor), show)):
            return DONE
    print(NO_ANSWERS, file=sys.stderr)
    return FAILED


def try_on_servers(loaded: Loaded, plan: Plan, run_id: str, replace: bool = False) -> int:
    """Starts the servers of the plan, and a process that sends rows to them and writes the report. The folder of the
    logs stays only after a failure."""
    trial = lock_serving_run(loaded, plan, run_id, replace, Purpose.TRY)
    if isinstance(trial, int):
        return trial
    directory = trial.locked.run.directory
    report_lines = AddedLines(directory / REPORT)

    def show() -> None:
        for line in report_lines.new():
            trial.say(line)

    ending = trial.watch_worker(show, trial.say)
    trial.leave(ending)
    return ending.code
