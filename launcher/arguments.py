"""Parses the command line: a command, a configuration file, flags and overrides, in any order."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from areal_like.config.problems import ConfigError, Problem
from areal_like.config.suggest import nearest

DOTTED_KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)+")

COMMANDS = {
    "run": "start the experiment (the default)",
    "serve": "start only the experiment's inference servers, for other programs and later runs",
    "eval": "eval RUN [step=N] [with=RUN[@N]]: scores of saved answers, or a paired comparison; eval [MODEL] "
    "[with=MODEL|RUN[@N]] --config FILE: evaluate a model without training, or compare two; eval resume=RUN: go on "
    "with that",
    "chat": "chat RUN [step=N]: the newest model of a run answers prompts, one per line, greedily",
    "audit": "audit RUN: whether a group of answers was lost, trained on twice or too old, from the run's ledger",
    "keys": "how many keys of AReaL and prime-rl have an effect here (docs/keys.md lists them)",
    "rewards": "rewards RUN --reward NAME, or FILE: what rewards give for saved answers, and how far they agree",
    "overlap": "held-out rows that are also training rows: exactly, after normalization, by n-grams of words",
    "try": "eight rows through data, template, answers, reward and masks, and whether there is something to learn",
}
OPERANDS = {"audit": "RUN", "chat": "RUN", "eval": "RUN", "rewards": "RUN|FILE"}
"""The argument that a command needs; `eval` takes a configuration instead."""
EVAL = "eval"
FLAGS = {
    "--config": "NAME",
    "--multirun": None,
    "--dry-run": "[=full or json]",
    "--explain": "KEY",
    "--cfg": "[=SECTION]",
    "--help": "[=SECTION or KEY]",
    "--schema": "[=my.module:MyConfig]",
    "--replace": None,
    "--reward": "NAME[,argument=value ...]",
    "--answers": "FILE",
    "--ngram": "N",
    "--for": "gpus=8,cores=96,memory=1T",
    "--model-config": "FILE",
    "--version": None,
}
OPTIONAL_VALUE_FLAGS = tuple(flag for flag, value in FLAGS.items() if value is not None and value.startswith("["))
REPEATED_FLAGS = ("--reward",)
OWN_FLAGS = {"overlap": ("--ngram",), "rewards": ("--reward",), "try": ("--answers",)}
"""Flags that only one command reads."""
DRY_RUN_FLAGS = ("--for", "--model-config")
COMMAND_SYNONYMS = {"resume": "resume=RUN", "start": "run", "train": "run"}
"""Names that other programs use."""
SHORT_FLAGS = {"-m": "--multirun", "-h": "--help", "-c": "--config"}
CLASS_NAME = re.compile(r"[\w./~-]+:[A-Za-z_]\w*")


@dataclass
class Arguments:
    """The parsed command line. A flag without a value is True, one that was not given is None."""

    command: str = "run"
    operand: str | None = None
    config: str | None = None
    overrides: list[str] = field(default_factory=list)
    multirun: bool = False
    dry_run: str | bool | None = None
    explain: str | None = None
    cfg: str | bool | None = None
    help: str | bool | None = None
    schema: str | bool | None = None
    replace: bool = False
    for_machine: str | None = None
    model_config: str | None = None
    version: bool = False
    answers: str | None = None
    ngram: str | None = None
    reward: list[str] = field(default_factory=list)

    @property
    def schema_class(self) -> str | None:
        return self.schema if isinstance(self.schema, str) else None


def parse_arguments(words: Sequence[str]) -> Arguments:
    """Raises ConfigError with every problem of the command line."""
    arguments, problems = Arguments(), []
    following = list(words)
    bare: list[str] = []
    is_operand = False
    while following:
        word = following.pop(0)
        if not is_operand and (_is_bare(word) or word.endswith("=")) and (key := key_without_equals(word, following)):
            problems.append(key)
            continue
        is_operand = word in (*OPERANDS, *OPTIONAL_VALUE_FLAGS)
        if _is_bare(word):
            bare.append(word)
            continue
        if not word.startswith("-") or ("=" in word and not word.startswith("--")):
            arguments.overrides.append(word)
            continue
        name, has_value, value = word.partition("=")
        name = SHORT_FLAGS.get(name, name)
        if name not in FLAGS:
            problems.append(
                Problem(name, f"no such flag{_flag_meant(name, value)} (--help lists them)", "command line")
            )
            continue
        problem = _set(arguments, name, value if has_value else None, following)
        if problem:
            problems.append(Problem(name, problem, "command line"))
    problems += _bare(arguments, bare)
    problems += _alone(arguments)
    answers = [
        flag
        for flag, value in (
            ("--explain", arguments.explain),
            ("--cfg", arguments.cfg),
            ("--dry-run", arguments.dry_run),
        )
        if value is not None
    ]
    if arguments.replace and any(word.startswith("resume=") for word in arguments.overrides):
        message = "starts a run from the beginning, resume= continues it; keep one"
        problems.append(Problem("--replace", message, "command line"))
    if arguments.dry_run is None and arguments.help is None:
        message = "is only for a plan; add --dry-run"
        given = [name for name in DRY_RUN_FLAGS if getattr(arguments, flag_attribute(name)) is not None]
        problems += [Problem(name, message, "command line") for name in given]
    for flag in answers[1:]:
        problems.append(Problem(flag, f"and {answers[0]} print different things; keep one", "command line"))
    if problems:
        raise ConfigError(problems)
    return arguments


def _bare(arguments: Arguments, words: Sequence[str]) -> list[Problem]:
    """Words without `=` or dashes: the command, its operand, and a configuration without --config."""
    remaining, command, problems = list(words), None, []
    is_unknown = False
    while remaining:
        word = remaining.pop(0)
        if command is None and word in COMMANDS:
            arguments.command = command = word
            if command in OPERANDS and remaining and not (command == EVAL and is_config_name(remaining[0])):
                arguments.operand = remaining.pop(0)
        elif word.endswith(".py"):
            hint = f"; --schema {word}:MyConfig names a class in it"
            problems.append(Problem(word, f"is no configuration{hint}", "command line"))
        elif is_config_name(word):
            if arguments.config is not None:
                message = f"is a second configuration beside {arguments.config}; keep one"
                problems.append(Problem(word, message, "command line"))
            arguments.config = arguments.config or word
        elif not is_unknown:  # what follows an unknown command may be its operand
            problems.append(Problem(word, _misplaced(word, command), "command line"))
            is_unknown = command is None
    operand = OPERANDS.get(arguments.command)
    resumes = any(word.startswith("resume=") for word in arguments.overrides)
    if arguments.command == EVAL and arguments.operand is None and (arguments.config is not None or resumes):
        return problems
    if operand and arguments.operand is None and arguments.help is None and not arguments.version:
        message = f"needs {operand}: python -m launcher {arguments.command} {operand}"
        if arguments.command == EVAL:
            message += ", or a model to evaluate: eval [MODEL] --config FILE"
        problems.append(Problem(arguments.command, message, "command line"))
    return problems


def is_config_name(word: str) -> bool:
    """Whether a bare word is a configuration: by its suffix, or because such a file exists."""
    from areal_like.config.sources.library import find_config

    if word.endswith((".yaml", ".yml", ".toml")):
        return True
    try:
        find_config(word)
    except ConfigError:
        return False
    return True


def _misplaced(word: str, command: str | None) -> str:
    """The error for a bare word that is neither a command nor a file."""
    if _is_run(word):
        return f"is a run; resume={word} continues it, `chat {word}` queries its model"
    if command is not None:
        return "unexpected argument; overrides are key=value, group=option or ~key, flags begin with --"
    guess = _likely_command(word)
    hint = f"; did you mean {guess[0]}?" if guess else "."
    known = f" Commands: {', '.join(COMMANDS)}; --config names a file."
    return f"no such command{hint}{known} The value of a flag or key follows `=` (--dry-run=json)."


def _flag_meant(name: str, value: str) -> str:
    """A hint: a flag with a similar name, or the key without dashes."""
    if guess := nearest(name, list(FLAGS)):
        return f"; did you mean {guess[0]}?"
    key = name.lstrip("-")
    return f"; a key has no dashes: {key}={value or '...'}" if key else ""


def _likely_command(word: str) -> list[str]:
    """Commands, flags or experiments that an unknown word may mean, the most similar first."""
    for flag in FLAGS:
        if word == flag.removeprefix("--"):
            return [flag]
    return [COMMAND_SYNONYMS[word]] if word in COMMAND_SYNONYMS else nearest(word, [*COMMANDS, *_shipped()])


def _shipped() -> list[str]:
    from areal_like.config.sources.library import data_folder

    return [path.stem for path in sorted(data_folder("experiments").glob("*.yaml"))]


def _is_run(word: str) -> bool:
    from areal_like.process.run import CONFIG

    try:
        return (Path(word).expanduser() / CONFIG).is_file()
    except (OSError, ValueError):
        return False


def _alone(arguments: Arguments) -> list[Problem]:
    """Problems of flags that the command does not take."""
    takes = {
        "audit": "a run",
        "chat": "a run and step=N",
        "keys": "nothing",
        "rewards": "a file, --reward and reward.timeout_s=",
    }.get(arguments.command)
    if arguments.command == EVAL and arguments.operand is not None and arguments.config is None:
        takes = "a run, step=N and with=RUN@N, or a configuration"
    if arguments.help is not None or arguments.version:
        return []
    own = OWN_FLAGS.get(arguments.command, ())
    given = [name for name in FLAGS if getattr(arguments, flag_attribute(name)) and name not in own]
    if takes is None:
        others = [(name, command) for command, flags in OWN_FLAGS.items() for name in flags if name in given]
        return [Problem(name, f"is only for the command {command}", "command line") for name, command in others]
    message = f"has no effect on {arguments.command}, which takes only {takes}; remove it"
    return [Problem(name, message, "command line") for name in given]


def _set(arguments: Arguments, name: str, value: str | None, following: list[str]) -> str | None:
    """Sets one flag; returns what is wrong with it. A required value may be the next word."""
    if name in ("--config", "--explain", "--answers", "--ngram", *REPEATED_FLAGS, *DRY_RUN_FLAGS):
        if value is None and following and not following[0].startswith("--"):
            value = following.pop(0)
        if not value:
            return f"needs a value: {name} {FLAGS[name]}"
        field_name = flag_attribute(name)
        if name in REPEATED_FLAGS:
            getattr(arguments, field_name).append(value)
            return None
        if getattr(arguments, field_name) is not None:
            return "is given twice; keep one"
        setattr(arguments, field_name, value)
        return None
    if name == "--schema" and value is None and following and CLASS_NAME.fullmatch(following[0]):
        value = following.pop(0)
    field_name = flag_attribute(name)
    if FLAGS[name] is None:
        if value is not None:
            return f"takes no value, but has {value!r}"
        setattr(arguments, field_name, True)
        return None
    if value == "":
        return f"has an empty value; write {name} or {name}{FLAGS[name]}"
    if name == "--dry-run" and value not in (None, "full", "json"):
        return f"has no form {value!r}; write --dry-run (one screen), --dry-run=full (all) or --dry-run=json (data)"
    if getattr(arguments, field_name) not in (None, False):
        return "is given twice; keep one"
    setattr(arguments, field_name, True if value is None else value)
    return None


def flag_attribute(flag: str) -> str:
    """The attribute of `Arguments` that holds a flag; `for` is a keyword of Python."""
    return "for_machine" if flag == "--for" else flag.removeprefix("--").replace("-", "_")


def _is_bare(word: str) -> bool:
    return bool(word) and word[0] not in "-+~" and "=" not in word


def key_without_equals(word: str, following: list[str]) -> Problem | None:
    """The problem of a key and its value given as two words; removes the value from `following`."""
    key = word.removesuffix("=")
    if not _is_key(key, bool(following)) or (key != word and not _is_value(following)):
        return None
    value = "..."
    if key == word and following and following[0].startswith("="):
        value = following.pop(0)[1:] or (following.pop(0) if _is_value(following) else value)
    elif _is_value(following):
        value = following.pop(0)
    return Problem(key, f"is a key: write {key}={value}, without spaces", "command line")


def _is_value(following: list[str]) -> bool:
    return bool(following) and "=" not in following[0] and not following[0].startswith(("--", "+", "~"))


def _is_key(word: str, waits: bool) -> bool:
    if word in COMMANDS or (word in COMMAND_SYNONYMS and not waits) or is_config_name(word):
        return False
    if DOTTED_KEY.fullmatch(word) and not word.endswith((".json", ".py")):
        return True
    from areal_like.config.experiment import EXPERIMENTS
    from areal_like.config.names import ALIASES
    from areal_like.config.schema import Schema

    return word in ALIASES or any(word in Schema.of(cls).keys for cls in EXPERIMENTS.values())
