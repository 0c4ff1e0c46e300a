"""The command line, taken apart: one verb, flags, and overrides that may stand anywhere among them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from areal_like.config.problems import ConfigError, Problem
from areal_like.config.suggest import nearest

VERBS = {
    "run": "start the experiment (the default)",
    "serve": "start the experiment's inference servers alone, for other programs and for runs to come",
    "chat": "chat RUN [step=N]: the newest model of a run answers prompts, one a line, as likely as it can",
    "keys": "how many of the promised keys are live, pending and refused (docs/keys.md has them all)",
}
OPERANDS = {"chat": "RUN"}
"""What a verb wants to be told besides."""
FLAGS = {
    "--config": "NAME",
    "--multirun": None,
    "--dry-run": "[=json]",
    "--explain": "KEY",
    "--cfg": "[=SECTION]",
    "--help": "[=SECTION or KEY]",
    "--schema": "[=my.module:MyConfig]",
    "--replace": None,
    "--version": None,
}
SHORT = {"-m": "--multirun", "-h": "--help", "-c": "--config"}
CLASS_NAME = re.compile(r"[\w./~-]+:[A-Za-z_]\w*")


@dataclass
class Arguments:
    """What was asked for. A flag given without a value is True, one not given None."""

    verb: str = "run"
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
    version: bool = False

    @property
    def schema_class(self) -> str | None:
        return self.schema if isinstance(self.schema, str) else None


def parse_arguments(words: Sequence[str]) -> Arguments:
    """Raises ConfigError with everything that cannot be understood."""
    arguments, problems = Arguments(), []
    waiting = list(words)
    verbs: list[str] = []
    while waiting:
        word = waiting.pop(0)
        if _is_bare(word):
            verbs.append(word)
            continue
        if not word.startswith("-") or ("=" in word and not word.startswith("--")):
            arguments.overrides.append(word)
            continue
        name, has_value, value = word.partition("=")
        name = SHORT.get(name, name)
        if name not in FLAGS:
            guess = nearest(name, list(FLAGS))
            hint = f"; did you mean {guess[0]}?" if guess else ""
            problems.append(Problem(name, f"no such flag{hint} (--help lists them)", "command line"))
            continue
        problem = _set(arguments, name, value if has_value else None, waiting)
        if problem:
            problems.append(Problem(name, problem, "command line"))
    problems += _verb(arguments, verbs)
    asked = [
        flag
        for flag, value in (
            ("--explain", arguments.explain),
            ("--cfg", arguments.cfg),
            ("--dry-run", arguments.dry_run),
        )
        if value is not None
    ]
    if arguments.replace and any(word.startswith("resume=") for word in arguments.overrides):
        message = "begins a run anew, and resume= goes on with it; keep one"
        problems.append(Problem("--replace", message, "command line"))
    for flag in asked[1:]:
        problems.append(Problem(flag, f"and {asked[0]} ask for two answers; keep one", "command line"))
    if problems:
        raise ConfigError(problems)
    return arguments


def _verb(arguments: Arguments, words: Sequence[str]) -> list[Problem]:
    """The first bare word is the verb; a second one is a mistake."""
    for verb in words[:1]:
        if verb not in VERBS:
            guess = nearest(verb, list(VERBS))
            hint = f"; did you mean {guess[0]}?" if guess else "."
            more = " A file is named by --config." if verb.endswith((".yaml", ".yml")) else ""
            more = more or " The value of a flag follows `=` (--dry-run=json), that of a key as well."
            return [Problem(verb, f"no such verb{hint} There are: {', '.join(VERBS)}.{more}", "command line")]
        arguments.verb = verb
    if arguments.verb in OPERANDS:
        what = OPERANDS[arguments.verb]
        if len(words) < 2:
            message = f"wants {what}: python -m launcher {arguments.verb} {what}"
            return [Problem(arguments.verb, message, "command line")]
        arguments.operand = words[1]
        words = words[1:]
    message = "is neither an override (key=value, group=option, ~key) nor a flag, and the verb stands already"
    return [Problem(word, message, "command line") for word in words[1:]]


def _set(arguments: Arguments, name: str, value: str | None, waiting: list[str]) -> str | None:
    """Sets one flag; says what is wrong with it, if anything is. A value that must be there may follow as a word."""
    if name in ("--config", "--explain"):
        if value is None and waiting and not waiting[0].startswith("--"):
            value = waiting.pop(0)
        if not value:
            return f"wants a value: {name} {FLAGS[name]}"
        field_name = name.removeprefix("--")
        if getattr(arguments, field_name) is not None:
            return "stands twice; keep one"
        setattr(arguments, field_name, value)
        return None
    if name == "--schema" and value is None and waiting and CLASS_NAME.fullmatch(waiting[0]):
        value = waiting.pop(0)
    field_name = name.removeprefix("--").replace("-", "_")
    if FLAGS[name] is None:
        if value is not None:
            return f"takes no value, but has {value!r}"
        setattr(arguments, field_name, True)
        return None
    if value == "":
        return f"has an empty value; write {name} or {name}{FLAGS[name]}"
    if name == "--dry-run" and value not in (None, "json", "text"):
        return f"prints text or json, not {value!r}; write --dry-run or --dry-run=json"
    if getattr(arguments, field_name) not in (None, False):
        return "stands twice; keep one"
    setattr(arguments, field_name, True if value is None else value)
    return None


def _is_bare(word: str) -> bool:
    return bool(word) and word[0] not in "-+~" and "=" not in word
