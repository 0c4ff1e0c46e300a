"""The words of `rewards`: rewards with their arguments, and keys of the section `reward`."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from areal_like.config.built_in import PACKAGES
from areal_like.config.checks.rewards import reward_problems
from areal_like.config.checks.user_code import user_code_problems
from areal_like.config.checks.values import InvalidValue, check_key
from areal_like.config.experiment import GRPOConfig
from areal_like.config.install_command import pip_command
from areal_like.config.load import load
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.schema import Schema
from areal_like.config.sections.reward import NamedReward, named_rewards
from areal_like.config.sources.library import data_folder
from areal_like.rollout.episodes.rewards.limits import RewardLimits

SECTION = "reward."
LIMITS = ("timeout_s", "processes", "sandbox", *RewardLimits._fields)
"""Its keys that can be set here."""
PARTS = "reward.parts="
SETUP_TIMEOUT = "rollout.setup_timeout="
"""How long the server of a reward model may take to start."""
CLOSING = {"[": "]", "{": "}", "(": ")", '"': '"', "'": "'"}


class WantedReward(NamedTuple):
    """A reward by which answers are to be scored. Without a name and parts it is that of the run. `where`: the words
    that want it."""

    where: str = ""
    name: str | None = None
    args: dict[str, Any] = {}  # noqa: RUF012
    parts: Sequence[dict[str, Any]] = ()

    @property
    def rewards(self) -> list[NamedReward]:
        return named_rewards(self.name, self.args, self.parts)

    def problems(self, task: str | None) -> Iterator[Problem]:
        """Those that need no import of the reward. `task`: that of the run."""
        if self.parts:
            yield from reward_problems(
                {"reward": {"name": None, "parts": self.parts}, "task": {"name": task}, "train_dataset": {}}
            )
        else:
            values = {"reward": {"name": self.name, "args": self.args}}
            for problem in user_code_problems(values, Path.cwd()):
                message = problem.message.replace(f"+{SECTION}args.", f"--reward {self.name},")
                yield Problem(problem.key, message, self.where)
        for each in self.rewards:
            module, package = PACKAGES["reward"].get(each.name, ("", ""))
            if module and find_spec(module) is None:
                needs = f"{each.name} needs the package {package}, which is not installed"
                yield Problem(f"{each.section}.name", f"{needs}; {pip_command(package)} installs it", self.where)


def wanted_rewards(named: Sequence[str], overrides: Sequence[str]) -> dict[str, WantedReward]:
    """Those of `--reward` and of `reward.parts=`, by their titles: the name alone where it is the only one. Raises
    ConfigError."""
    names = [_split(text)[0] for text in named]
    wanted = {
        text if names.count(name) > 1 else name: WantedReward(f"--reward {text}", *_parse(text))
        for name, text in zip(names, named, strict=True)
    }
    for word in (word for word in overrides if word.startswith(PARTS)):
        parts = [vars(part) for part in shipped(["reward.name=null", word]).config.reward.parts]
        reward = WantedReward(word, parts=parts)
        wanted[f"the sum of {', '.join(each.label for each in reward.rewards)}"] = reward
    return wanted


def shipped(overrides: Sequence[str]) -> Any:
    """The loaded configuration of an experiment that needs no model or data, with these words."""
    return load(str(data_folder("experiments") / "grpo.yaml"), overrides)


def limits_in(overrides: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    """The keys of `reward` that are given, and what is wrong with them."""
    keys, found, problems = Schema.of(GRPOConfig).keys, dict[str, Any](), list[Problem]()
    for word in (word for word in overrides if word.startswith(SECTION) and not word.startswith(PARTS)):
        key, _, value = word.partition("=")
        name = key.removeprefix(SECTION)
        if name not in LIMITS:
            message = f"rewards takes of this section only parts, {', '.join(LIMITS)}"
            problems.append(Problem(key, message, "command line"))
            continue
        try:
            found[name] = check_key(keys[key], yaml.safe_load(value))
        except (InvalidValue, yaml.YAMLError) as fault:
            problems.append(Problem(key, str(fault), "command line"))
    return found, problems


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
