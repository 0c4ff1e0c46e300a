"""`rewards RUN|FILE --reward NAME[,argument=value ...]`: what rewards give for saved answers."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from areal_like.config.built_in import PACKAGES
from areal_like.config.checks.sandboxed_code import runs_programs
from areal_like.config.checks.user_code import user_code_problems
from areal_like.config.checks.values import InvalidValue, check_key
from areal_like.config.control_characters import escape_controls
from areal_like.config.experiment import GRPOConfig
from areal_like.config.install_command import pip_command
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.schema import Schema
from areal_like.config.sections.reward import REWARD_MODEL, RewardConfig
from areal_like.observe.reward_report import ScoredAnswer, agreement_report, reward_report
from areal_like.process.exit_codes import DONE, FAILED
from areal_like.process.sandbox.sandbox import other_sandbox, sandbox_problem
from areal_like.rollout.episodes.rewards.bench import SavedAnswer, score_answers
from areal_like.rollout.episodes.rewards.limits import RewardLimits
from areal_like.rollout.episodes.rewards.spec import RewardSpec
from launcher.commands.saved_answers import AnswerSet, saved_answers

SECTION = "reward."
LIMITS = ("timeout_s", "processes", "sandbox", *RewardLimits._fields)
"""Its keys that can be set here."""
OF_RUN = "that of the run"
CLOSING = {"[": "]", "{": "}", "(": ")", '"': '"', "'": "'"}
PROGRESS_EVERY = 100


def rewards(name: str, named: Sequence[str], overrides: Sequence[str]) -> int:
    """Prints the reports; returns 1 where a reward has failed for every answer."""
    limits, problems = _limits(overrides)
    given = {}
    for text in named:
        title = _title(text, named)
        given[title] = _parse(text)
        problems += reward_problems(*given[title], text)
    if not named:
        problems.append(Problem("--reward", "is missing; name a reward: --reward exact", "command line"))
    saved: AnswerSet | None = None
    try:
        saved = saved_answers(name, [word for word in overrides if not word.startswith(SECTION)])
    except ConfigError as error:
        problems += error.problems
    if saved is not None:
        sandbox = limits.get("sandbox", saved.reward.sandbox)
        problems += (found for text in named for found in _sandbox_problems(text, sandbox))
    if problems or saved is None:
        raise ConfigError(problems)
    config = replace(saved.reward, **limits)
    if saved.title:
        _print(iter([saved.title]))
    scored: dict[str, Sequence[ScoredAnswer]] = {}
    for title, (reward, args) in given.items():
        specs = saved.specs(reward, args, limits.get("sandbox"))
        scored[title] = _score(title, specs.values(), saved.answers, config)
        _print(reward_report(title, scored[title]))
    failed = any(all(each.error for each in answers) for answers in scored.values())
    if saved.has_rewards:
        scored[OF_RUN] = saved.own_rewards()
    _print(agreement_report(scored))
    return FAILED if failed else DONE


def reward_problems(name: str, args: dict[str, Any], text: str) -> Iterator[Problem]:
    """Those that need no import of the reward."""
    where = f"--reward {text}"
    if name == REWARD_MODEL:
        yield Problem(
            "reward.name",
            "a reward model needs its server, which rewards does not start; `try --config FILE reward.name=model "
            "+reward.args.path=MODEL` starts it, and shows what it gives for eight rows",
            where,
        )
        return
    for problem in user_code_problems({"reward": {"name": name, "args": args}}, Path.cwd()):
        yield Problem(problem.key, problem.message.replace(f"+{SECTION}args.", f"--reward {name},"), where)
    module, package = PACKAGES["reward"].get(name, ("", ""))
    if module and find_spec(module) is None:
        needs = f"{name} needs the package {package}, which is not installed"
        yield Problem("reward.name", f"{needs}; {pip_command(package)} installs it", where)


def _sandbox_problems(text: str, sandbox: str) -> Iterator[Problem]:
    """`sandbox` is that of the run, unless another one is given."""
    name = _parse(text)[0]
    if runs_programs(name, Path.cwd()) and (reason := sandbox_problem(sandbox)):
        message = f"{name} runs programs of answers in a sandbox: {reason}; {other_sandbox(sandbox)}"
        yield Problem("reward.name", message, f"--reward {text}")


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """`length,limit=8,unit=words` -> the name and its arguments, as in YAML."""
    name, *pairs = _split(text)
    args: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip().isidentifier():
            message = f"{pair!r} is no argument; write NAME,argument=value,argument=value"
            raise ConfigError([Problem("--reward", message, text)])
        try:
            args[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            args[key.strip()] = value
    return name.strip(), args


def _split(text: str) -> list[str]:
    """At commas that are not in brackets or quotes."""
    parts, open_until = [""], ""
    for letter in text:
        if open_until and letter == open_until[-1]:
            open_until = open_until[:-1]
        elif letter in CLOSING and not open_until.endswith(('"', "'")):
            open_until += CLOSING[letter]
        elif letter == "," and not open_until:
            parts.append("")
            continue
        parts[-1] += letter
    return parts


def _title(text: str, named: Sequence[str]) -> str:
    """The name alone where it is the only one."""
    names = [_split(each)[0] for each in named]
    return text if names.count(_split(text)[0]) > 1 else _split(text)[0]


def _limits(overrides: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    """The keys of `reward` that are given, and what is wrong with them."""
    keys, found, problems = Schema.of(GRPOConfig).keys, dict[str, Any](), list[Problem]()
    for word in (word for word in overrides if word.startswith(SECTION)):
        key, _, value = word.partition("=")
        name = key.removeprefix(SECTION)
        if name not in LIMITS:
            message = f"rewards takes of this section only {', '.join(LIMITS)}"
            problems.append(Problem(key, message, "command line"))
            continue
        try:
            found[name] = check_key(keys[key], yaml.safe_load(value))
        except (InvalidValue, yaml.YAMLError) as fault:
            problems.append(Problem(key, str(fault), "command line"))
    return found, problems


def _score(
    title: str,
    specs: Iterable[tuple[RewardSpec, Sequence[int]]],
    answers: Sequence[SavedAnswer],
    config: RewardConfig,
) -> list[ScoredAnswer]:
    """Each answer by its reward, in their order."""
    scored: dict[int, ScoredAnswer] = {}
    for spec, chosen in specs:
        some = [answers[index] for index in chosen]
        scored |= zip(chosen, score_answers(spec, some, config, _progress(title, len(some))), strict=True)
    return [scored[index] for index in range(len(answers))]


def _progress(title: str, total: int) -> Any:
    def show(count: int) -> None:
        if sys.stderr.isatty() and (count % PROGRESS_EVERY == 0 or count == total):
            print(f"{title}: {count} of {total}", end="\n" if count == total else "\r", file=sys.stderr, flush=True)

    return show


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(escape_controls(line), flush=True)
