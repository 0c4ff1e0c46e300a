"""Saved answers with the rows that they answer: those of a file, or of an evaluation or the training steps of a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.benchmarks import SPLIT
from areal_like.config.environments import PREFIX
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.reward import REWARD_OF_TASK, RewardConfig
from areal_like.config.task_names import task_name
from areal_like.data.data_record import temporary_record
from areal_like.data.datasets import Datasets, load_datasets
from areal_like.data.user_code import SearchFolders
from areal_like.observe.reward_report import ScoredAnswer
from areal_like.process.errors import FinalFailure
from areal_like.process.identity import hide_key
from areal_like.process.run import Run, open_run
from areal_like.rollout.answer_lines import read_lines
from areal_like.rollout.episodes.main import open_tokenizer
from areal_like.rollout.episodes.own_settings import main_reward, own_rewards
from areal_like.rollout.episodes.rewards.bench import SavedAnswer
from areal_like.rollout.episodes.rewards.spec import RewardSpec
from areal_like.rollout.evaluation.answer_folders import (
    VALID,
    evaluated_steps,
    evaluation_folder,
    files_of,
    read_answers,
)
from areal_like.rollout.groups import TRAIN
from areal_like.rollout.rollout_files import rollout_files
from launcher.commands.reward_words import WantedReward
from launcher.runs.named_run import STEP, find_run, last_value, unknown_words

ROLLOUTS, LAST, ALL = "rollouts=", "last", "all"
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
    title: str = ""
    """Which answers of the run these are."""
    sources: Sequence[str] = ()
    """What each answer is of: `environment/NAME`, `benchmark/NAME`, or another split."""
    of_sources: Mapping[str, RewardSpec] = field(default_factory=dict)
    """The rewards of those that have their own; `main` has that of the experiment."""
    main: RewardSpec | None = None

    @property
    def has_rewards(self) -> bool:
        return bool(self.own)

    def own_rewards(self) -> list[ScoredAnswer]:
        return [
            ScoredAnswer(each.place, each.prompt, each.completion, value, seconds=0.0)
            for each, value in zip(self.answers, self.own, strict=True)
        ]

    def specs(self, wanted: WantedReward, sandbox: str | None) -> dict[str, tuple[RewardSpec, list[int]]]:
        """The reward of each answer: which answers have it. `task` is that of their environment or benchmark, if it
        has one. `sandbox` None: that of the run."""
        places = str(Path.cwd()), str(self.folder.absolute())
        named = RewardSpec(
            *(wanted.name, wanted.args, self.task, self.task_args, *places, wanted.parts),
            sandbox=sandbox or self.reward.sandbox,
        )
        if wanted.rewards and (wanted.name != REWARD_OF_TASK or not self.of_sources):
            return {"": (named, list(range(len(self.answers))))}
        of_others = named if wanted.rewards and self.task is not None else self.main or named
        found: dict[str, tuple[RewardSpec, list[int]]] = {}
        for index, source in enumerate(self.sources):
            own = self.of_sources.get(source)
            spec = own or of_others
            if sandbox is not None:
                spec = spec._replace(sandbox=sandbox)
            found.setdefault(source if own else "", (spec, []))[1].append(index)
        return found


class AnswerPlace(NamedTuple):
    """Where answers are, not read yet. `run` is None for a file; `rollouts` and `step` as the user has named them."""

    run: Run | None
    file: Path = Path()
    rollouts: str | None = None
    step: str | None = None

    @property
    def reward(self) -> RewardConfig:
        """Of the run, or one without changes."""
        default: Any = RewardConfig  # all keys have a default, which type checkers do not see
        reward: RewardConfig = default() if self.run is None else self.run.config.reward
        return reward


def answer_source(name: str, words: Sequence[str]) -> AnswerPlace:
    """`name` is a file or a run; `words` are the overrides step=N and rollouts=N, which are for runs, and
    cluster.fileroot=."""
    file = Path(name).expanduser()
    if file.is_file() or file.suffix == ".jsonl":
        if unknown := unknown_words(words, (), "rewards FILE takes only limits of `reward`"):
            raise ConfigError(unknown)
        return AnswerPlace(None, file)
    known = "rewards RUN takes only step=N, rollouts=N and limits of `reward`"
    if unknown := unknown_words(words, (STEP, ROLLOUTS), known):
        raise ConfigError(unknown)
    step, rollouts = last_value(words, STEP), last_value(words, ROLLOUTS)
    if step is not None and rollouts is not None:
        raise ConfigError([Problem(f"{STEP}{step}", f"is of an evaluation, and {ROLLOUTS} of training; keep one")])
    return AnswerPlace(open_run(find_run(name, words, "rewards")), Path(), rollouts, step)


def saved_answers(source: AnswerPlace) -> AnswerSet:
    run, rollouts, step = source.run, source.rollouts, source.step
    if run is None:
        return AnswerSet(list(_answers_in(source.file)), source.reward)
    if rollouts is None and step is None and not evaluated_steps(run.directory) and rollout_files(run.rollouts):
        rollouts = LAST
    if rollouts is None:
        folder = evaluation_folder(run.directory, step)
        return _of_run(run, _evaluated(folder), f"answers of {folder}")
    files = _chosen(run, rollouts)
    title = f"training rollouts of {run.directory}, step {', '.join(map(str, files))}"
    return _of_run(run, chain.from_iterable(map(_trained, files.values())), title)


def _chosen(run: Run, rollouts: str) -> dict[int, Path]:
    """The files of the steps that `rollouts=` names."""
    files = rollout_files(run.rollouts)
    if not files:
        message = f"{run.rollouts} has no rollouts; a run with rollout.dump_to_file=true saves them"
        raise ConfigError([Problem("rollouts", message)])
    if rollouts == ALL:
        return files
    step = str(max(files)) if rollouts == LAST else rollouts
    if not step.isdecimal() or int(step) not in files:
        known = f"there are those of {len(files)} steps from {min(files)} to {max(files)}; or write {LAST} or {ALL}"
        raise ConfigError([Problem(f"{ROLLOUTS}{rollouts}", f"there are no rollouts of this step; {known}")])
    return {int(step): files[int(step)]}


class _SavedLine(NamedTuple):
    """A saved answer whose row is not read yet. `place`: as it is shown."""

    split: str
    line: dict[str, Any]
    place: str
    file: Path


def _evaluated(folder: Path) -> Iterator[_SavedLine]:
    for name, file in files_of(folder).items():
        split = VALID if name == VALID else f"{SPLIT}{name}"
        for number, line in enumerate(read_answers(file), 1):
            if "answer" in line:  # no row that failed
                yield _SavedLine(split, line, f"{file.name}:{number}", file)


def _trained(file: Path) -> Iterator[_SavedLine]:
    """The samples of a conversation are one answer, a line each; of several agents, those of each run of one."""
    answers: dict[tuple[Any, ...], tuple[int, dict[str, Any]]] = {}
    for number, line in enumerate(read_answers(file), 1):
        key = line["group"], line["conversation"], line.get("agent", ""), line.get("run", 0)
        _, first = answers.setdefault(key, (number, line))
        if first is not line:
            first["answer"] += f"\n{line['answer']}"
    for number, line in answers.values():
        yield _SavedLine(TRAIN, line, f"{file.name}:{number}", file)


def _of_run(run: Run, lines: Iterable[_SavedLine], title: str) -> AnswerSet:
    """Each answer with its row, which is read again."""
    config = run.config
    hide_key(config.rollout)
    places = SearchFolders(run.folder, run.cwd)
    answers, own, sources = [], [], []
    with temporary_record() as record:
        datasets = load_datasets(config, places, open_tokenizer(config, run.cwd), record)
        for each in lines:
            answers.append(SavedAnswer(each.place, _row(datasets, each), each.line["answer"]))
            environment = datasets.of(each.split).environment(each.line["row"])
            sources.append(f"{PREFIX}{environment}" if environment else each.split)
            own.append(each.line["reward"])
    if not answers:
        raise ConfigError([Problem(title, "there are none")])
    found = AnswerSet(answers, config.reward, run.folder, task_name(config), dict(config.task.args), own, title)
    of_sources = {source: spec for source, (_, spec) in own_rewards(config, places).items()}
    return replace(found, sources=sources, of_sources=of_sources, main=main_reward(config, places))


def _row(datasets: Datasets, saved: _SavedLine) -> dict[str, Any]:
    try:
        return dict(datasets.of(saved.split).row(saved.line["row"], int(saved.line["row_hash"], 16)))
    except (FinalFailure, ValueError, KeyError, IndexError) as fault:
        place = saved.file.with_name(saved.place)
        raise ConfigError([Problem(str(place), f"its row cannot be read again: {fault}")]) from fault


def _answers_in(file: Path) -> Iterator[SavedAnswer]:
    """JSON lines with `prompt`, `completion` and the columns of the dataset's row."""
    for place, row in read_lines(file):
        missing = [name for name in NEEDED if not isinstance(row, dict) or name not in row]
        if missing:
            message = f"has no {missing[0]!r}; each line is an object with prompt, completion and columns of the row"
            raise ConfigError([Problem(place, message)])
        completion = row.pop("completion")
        if not isinstance(completion, str):
            raise ConfigError([Problem(place, f"completion is {completion!r:.40}; it must be a text")])
        yield SavedAnswer(place, row, completion)
