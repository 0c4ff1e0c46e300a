"""Saved answers with the rows that they answer: those of a file, or of an evaluation of a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from areal_like.config.benchmarks import SPLIT
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.reward import RewardConfig
from areal_like.data.datasets import Datasets, load_datasets, task_name
from areal_like.data.user_code import SearchFolders
from areal_like.observe.reward_report import ScoredAnswer
from areal_like.process.errors import FinalFailure
from areal_like.process.run import Run, open_run
from areal_like.rollout.answer_files import VALID
from areal_like.rollout.answer_files import read_answers as read_lines
from areal_like.rollout.episodes.main import open_tokenizer
from areal_like.rollout.episodes.rewards.bench import SavedAnswer
from areal_like.rollout.episodes.rewards.spec import RewardSpec
from launcher.commands.evaluate import STEP
from launcher.runs.resume import ROOT_OVERRIDES, find_run
from launcher.runs.score_tables import evaluation_folder, files_of

NEEDED = ("prompt", "completion")


@dataclass(frozen=True)
class AnswerSet:
    """`reward`: the limits for its rewards. `folder`: where rewards of the user are found, besides the working
    directory. `own`: the reward that each answer got in its run, None if that failed; empty for a file."""

    answers: Sequence[SavedAnswer]
    reward: RewardConfig
    folder: Path = Path()
    task: str | None = None
    task_args: dict[str, Any] = field(default_factory=dict)
    own: Sequence[float | None] = ()

    @property
    def has_rewards(self) -> bool:
        return bool(self.own)

    def own_rewards(self) -> list[ScoredAnswer]:
        return [
            ScoredAnswer(each.place, each.prompt, each.completion, value, seconds=0.0)
            for each, value in zip(self.answers, self.own, strict=True)
        ]

    def spec(self, name: str, args: dict[str, Any], sandbox: str) -> RewardSpec:
        places = str(Path.cwd()), str(self.folder.absolute())
        return RewardSpec(name, args, self.task, self.task_args, *places, sandbox=sandbox)


def saved_answers(name: str, words: Sequence[str]) -> AnswerSet:
    """`name` is a file or a run; `words` are the overrides step=N and cluster.fileroot=, which are for runs."""
    file = Path(name).expanduser()
    is_run = not file.is_file() and file.suffix != ".jsonl"
    known = (STEP, *ROOT_OVERRIDES) if is_run else ()
    if unknown := [word for word in words if not word.startswith(known)]:
        takes = "RUN takes only step=N and" if is_run else "FILE takes only"
        message = f"rewards {takes} limits of `reward`"
        raise ConfigError([Problem(word, message, "command line") for word in unknown])
    if not is_run:
        limits: Any = RewardConfig  # all keys have a default, which type checkers do not see
        return AnswerSet(list(read_answers(file)), limits())
    step = next((word.removeprefix(STEP) for word in words if word.startswith(STEP)), None)
    directory = find_run(name, [word for word in words if not word.startswith(STEP)], "rewards")
    return _of_run(open_run(directory), evaluation_folder(directory, step))


def _of_run(run: Run, folder: Path) -> AnswerSet:
    """Each answer of the evaluation with its row, which is read again."""
    config = run.config
    datasets = load_datasets(config, SearchFolders(run.folder, run.cwd), open_tokenizer(config, run.cwd))
    answers, own = [], []
    for name, file in files_of(folder).items():
        for number, line in enumerate(read_lines(file), 1):
            if "answer" in line:  # no row that failed
                place = f"{file}:{number}"
                answers.append(SavedAnswer(place, _row(datasets, name, line, place), line["answer"]))
                own.append(line["reward"])
    if not answers:
        raise ConfigError([Problem(str(folder), "has no answers")])
    return AnswerSet(answers, config.reward, run.folder, task_name(config), dict(config.task.args), own)


def _row(datasets: Datasets, name: str, line: dict[str, Any], place: str) -> dict[str, Any]:
    split = VALID if name == VALID else f"{SPLIT}{name}"
    try:
        return dict(datasets.of(split).row(line["row"], int(line["row_hash"], 16)))
    except (FinalFailure, ValueError, KeyError, IndexError) as fault:
        raise ConfigError([Problem(place, f"its row cannot be read again: {fault}")]) from fault


def read_answers(file: Path) -> Iterator[SavedAnswer]:
    """JSON lines with `prompt`, `completion` and the columns of the dataset's row."""
    try:
        lines = file.expanduser().read_bytes().splitlines()
    except OSError as fault:
        raise ConfigError([Problem(str(file), f"cannot be read: {fault.strerror}")]) from fault
    count = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{file}:{number}"
        try:
            row: Any = orjson.loads(line)
        except orjson.JSONDecodeError as fault:
            raise ConfigError([Problem(place, f"is not a line of JSON: {fault}")]) from fault
        missing = [name for name in NEEDED if not isinstance(row, dict) or name not in row]
        if missing:
            message = f"has no {missing[0]!r}; each line is an object with prompt, completion and columns of the row"
            raise ConfigError([Problem(place, message)])
        completion = row.pop("completion")
        if not isinstance(completion, str):
            raise ConfigError([Problem(place, f"completion is {completion!r:.40}; it must be a text")])
        count += 1
        yield SavedAnswer(place, row, completion)
    if not count:
        raise ConfigError([Problem(str(file), "has no answers")])
