"""`rewards RUN|FILE --reward NAME[,argument=value ...]`: what rewards give for saved answers."""

import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from areal_like.config.checks.sandboxed_code import runs_programs
from areal_like.config.control_characters import escape_controls
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.reward import REWARD_MODEL, REWARD_OF_TASK, NamedReward, RewardConfig, reward_model
from areal_like.config.task_names import task_name
from areal_like.observe.reward_report import ScoredAnswer, agreement_report, reward_report
from areal_like.process.exit_codes import DONE, FAILED
from areal_like.process.run import Run
from areal_like.process.sandbox.sandbox import other_sandbox, sandbox_problem
from areal_like.process.stop_signals import STOP_SIGNALS, handled, stop_command
from areal_like.rollout.episodes.rewards.bench import SavedAnswer, score_answers
from areal_like.rollout.episodes.rewards.spec import RewardSpec
from launcher.commands.reward_words import SECTION, SETUP_TIMEOUT, WantedReward, limits_in, wanted_rewards
from launcher.commands.saved_answers import AnswerPlace, AnswerSet, answer_source, saved_answers
from launcher.commands.served_reward import ServedReward, plan_server, prepare_servers, run_with_servers
from launcher.runs.named_run import ROOT_OVERRIDES
from launcher.terminal import write_line

OF_RUN = "that of the run"
PROGRESS_EVERY = 100


@handled(STOP_SIGNALS, stop_command)  # as planning and fetching take time
def rewards(name: str, named: Sequence[str], overrides: Sequence[str]) -> int:
    """Prints the reports; returns 1 where a reward has failed for every answer."""
    limits, problems = limits_in(overrides)
    wanted = wanted_rewards(named, overrides)
    source: AnswerPlace | None = None
    try:
        own = (SECTION, SETUP_TIMEOUT)
        source = answer_source(name, [word for word in overrides if not word.startswith(own)])
    except ConfigError as error:
        problems += error.problems
    run = None if source is None else source.run
    if not wanted and run is not None:
        wanted = {_title_of(run): WantedReward()}
    elif not wanted:
        problems.append(Problem("--reward", "is missing; name a reward: --reward exact", "command line"))
    wanted = {title: _with_model_of(run, each) for title, each in wanted.items()}
    task = None if run is None else task_name(run.config)
    problems += (found for each in wanted.values() for found in each.problems(task))
    if source is not None:
        sandbox = limits.get("sandbox", source.reward.sandbox)
        problems += (found for each in wanted.values() for found in _sandbox_problems(each, sandbox))
    if problems or source is None:
        raise ConfigError(problems)
    config = replace(source.reward, **limits)
    run_id = secrets.token_hex(6)
    served = _servers(wanted, run, config, overrides, run_id)
    if not served and any(word.startswith(SETUP_TIMEOUT) for word in overrides):
        message = "only the server of a reward model has this time to start; leave it out"
        raise ConfigError([Problem(SETUP_TIMEOUT.rstrip("="), message, "command line")])
    bench = _Bench(source, wanted, config, limits.get("sandbox"), served)
    return run_with_servers(bench.run, run_id) if served else bench.run()


@dataclass(frozen=True)
class _Bench:
    """`served`: the servers of the rewards that need one, by their titles."""

    source: AnswerPlace
    wanted: Mapping[str, WantedReward]
    config: RewardConfig
    sandbox: str | None
    served: Mapping[str, ServedReward]

    def run(self) -> int:
        saved = saved_answers(self.source)
        if saved.title:
            _print(iter([saved.title]))
        scored: dict[str, Sequence[ScoredAnswer]] = {}
        for title, reward in self.wanted.items():
            scored[title] = self._score(title, reward, saved)
            _print(reward_report(title, scored[title]))
        failed = any(all(each.error for each in answers) for answers in scored.values())
        if saved.has_rewards:
            scored[OF_RUN] = saved.own_rewards()
        _print(agreement_report(scored))
        return FAILED if failed else DONE

    def _score(self, title: str, reward: WantedReward, saved: AnswerSet) -> list[ScoredAnswer]:
        """Each answer by its reward, in their order."""
        scored: dict[int, ScoredAnswer] = {}
        for spec, chosen in saved.specs(reward, self.sandbox).values():
            some = [saved.answers[index] for index in chosen]
            scored |= zip(chosen, self._score_by(spec, title, some), strict=True)
        return [scored[index] for index in range(len(saved.answers))]

    def _score_by(self, spec: RewardSpec, title: str, answers: Sequence[SavedAnswer]) -> list[ScoredAnswer]:
        progress = _progress(title, len(answers))
        if any(each.name == REWARD_MODEL for each in spec.rewards):
            return self.served[title].score(title, spec, answers, progress)
        return score_answers(spec, answers, self.config, progress)


def _servers(
    wanted: Mapping[str, WantedReward], run: Run | None, config: RewardConfig, overrides: Sequence[str], run_id: str
) -> dict[str, ServedReward]:
    """Those that rewards need, planned, by the titles of these."""
    words = [word for word in overrides if word.startswith((SETUP_TIMEOUT, *ROOT_OVERRIDES))]
    if run is not None:
        words.insert(0, f"{SETUP_TIMEOUT}{run.config.rollout.setup_timeout}")
    found = {title: _model(run, each) for title, each in wanted.items()}
    models = {title: model for title, model in found.items() if model is not None}
    if not models:
        return {}
    prepare_servers()
    values = {} if run is None else asdict(run.config)
    return {
        title: plan_server(
            *(model, config, words, run_id, wanted[title].where),
            {**values, "args": wanted[title].args, "parts": list(wanted[title].parts)},
        )
        for title, model in models.items()
    }


def _model(run: Run | None, wanted: WantedReward) -> NamedReward | None:
    """The reward model that it queries."""
    of_others = wanted.name == REWARD_OF_TASK and run is not None and task_name(run.config) is None
    if not wanted.rewards or of_others:
        return _model_of(run)
    return next((each for each in wanted.rewards if each.name == REWARD_MODEL), None)


def _model_of(run: Run | None) -> NamedReward | None:
    """That of a run, with the folder as it was where the run was started."""
    model = None if run is None else reward_model(run.config.reward)
    if run is None or model is None:
        return None
    folder = run.cwd / Path(str(model.args["path"])).expanduser()
    return model._replace(args=model.args | {"path": str(folder)}) if folder.is_dir() else model


def _with_model_of(run: Run | None, wanted: WantedReward) -> WantedReward:
    """`model` without a path is the reward model of the run."""
    model = _model_of(run)
    if wanted.name != REWARD_MODEL or "path" in wanted.args or model is None:
        return wanted
    return wanted._replace(args=model.args | wanted.args)


def _title_of(run: Run) -> str:
    """Of the reward of a run."""
    reward, task = run.config.reward, task_name(run.config)
    parts = [vars(part) for part in reward.parts]
    return RewardSpec(reward.name, reward.args, task, {}, "", "", parts).title


def _sandbox_problems(wanted: WantedReward, sandbox: str) -> Iterator[Problem]:
    """`sandbox` is that of the run, unless another one is given."""
    for each in wanted.rewards:
        if runs_programs(each.name, Path.cwd()) and (reason := sandbox_problem(sandbox)):
            message = f"{each.name} runs programs of answers in a sandbox: {reason}; {other_sandbox(sandbox)}"
            yield Problem(f"{each.section}.name", message, wanted.where)


def _progress(title: str, total: int) -> Any:
    def show(count: int) -> None:
        if sys.stderr.isatty() and (count % PROGRESS_EVERY == 0 or count == total):
            print(f"{title}: {count} of {total}", end="\n" if count == total else "\r", file=sys.stderr, flush=True)

    return show


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        write_line(escape_controls(line), sys.stdout)
