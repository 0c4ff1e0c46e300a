"""`rewards FILE --reward NAME[,argument=value ...]`: what rewards give for saved answers."""

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import yaml

from areal_like.config.built_in import PACKAGES
from areal_like.config.checks.user_code import user_code_problems
from areal_like.config.control_characters import escape_controls
from areal_like.config.install_command import pip_command
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.reward import REWARD_MODEL, RewardConfig
from areal_like.observe.reward_report import ScoredAnswer, agreement_report, reward_report
from areal_like.process.exit_codes import DONE, FAILED
from areal_like.rollout.episodes.rewards.bench import SavedAnswer, score_answers
from areal_like.rollout.episodes.rewards.spec import RewardSpec

TIMEOUT = "reward.timeout_s="
NEEDED = ("prompt", "completion")
CLOSING = {"[": "]", "{": "}", "(": ")", '"': '"', "'": "'"}
PROGRESS_EVERY = 100


def rewards(file: str, named: Sequence[str], overrides: Sequence[str]) -> int:
    """Prints the reports; returns 1 where a reward has failed for every answer."""
    problems, timeout_s = _timeout(overrides)
    given = {}
    for text in named:
        name, args = given[_title(text, named)] = _parse(text)
        problems += reward_problems(name, args, text)
    if not named:
        problems.append(Problem("--reward", "is missing; name a reward: --reward exact", "command line"))
    answers: list[SavedAnswer] = []
    try:
        answers = list(read_answers(Path(file)))
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    cwd = str(Path.cwd())
    scored: dict[str, Sequence[ScoredAnswer]] = {}
    for title, (name, args) in given.items():
        spec = RewardSpec(name, args, None, {}, cwd, cwd)
        scored[title] = score_answers(spec, answers, timeout_s, _progress(title, len(answers)))
        _print(reward_report(title, scored[title]))
    _print(agreement_report(scored))
    return FAILED if any(all(each.error for each in answers) for answers in scored.values()) else DONE


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


def reward_problems(name: str, args: dict[str, Any], text: str) -> Iterator[Problem]:
    """Those that need no import of the reward."""
    where = f"--reward {text}"
    for problem in user_code_problems({"reward": {"name": name, "args": args}}, Path.cwd()):
        yield Problem(problem.key, problem.message, where)
    if name == REWARD_MODEL:
        yield Problem("reward.name", "a reward model is served by a run; it has no scores without one", where)
    module, package = PACKAGES["reward"].get(name, ("", ""))
    if module and find_spec(module) is None:
        needs = f"{name} needs the package {package}, which is not installed"
        yield Problem("reward.name", f"{needs}; {pip_command(package)} installs it", where)


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


def _timeout(overrides: Sequence[str]) -> tuple[list[Problem], float]:
    problems, timeout_s = [], RewardConfig.timeout_s
    for word in overrides:
        value = word.removeprefix(TIMEOUT)
        try:
            if value == word or not 0 < float(value) < float("inf"):
                raise ValueError
            timeout_s = float(value)
        except ValueError:
            problems.append(Problem(word, "rewards takes only reward.timeout_s=SECONDS", "command line"))
    return problems, timeout_s


def _progress(title: str, total: int) -> Any:
    def show(count: int) -> None:
        if sys.stderr.isatty() and (count % PROGRESS_EVERY == 0 or count == total):
            print(f"{title}: {count} of {total}", end="\n" if count == total else "\r", file=sys.stderr, flush=True)

    return show


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(escape_controls(line), flush=True)
