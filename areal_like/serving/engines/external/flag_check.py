"""Checks a command line with the installed engine's own argument parser. That imports the engine, which takes many
seconds: accepted command lines are cached, by interpreter, version and flags."""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from areal_like.process.identity import PORT
from areal_like.serving.engines.external.installations import EngineDistribution, installed_version, unsupported_version

TIMEOUT_S = 180
ACCEPTED, WRONG_USAGE, UNKNOWN = 0, 2, -1
"""Exit codes of a parser."""
FLAG = re.compile(r"--[a-z][\w-]*")
ERROR_TEXT = re.compile(r"error: (?P<message>.*)\Z", re.DOTALL)
ANY_VALUE = ("--model", "--model-path", "--seed", "--random-seed")
"""Flags whose values, as our configuration lets them through, no parser refuses: other values need no further check."""
SHARED_KEYS = {"model": "actor.path", "model-path": "actor.path"}


class FlagParser(NamedTuple):
    """`script` gets the flags as its arguments and ends as argparse does; `keys`: flag -> key, for flags that are not a
    key of the engine's section."""

    engine: EngineDistribution
    script: str
    keys: Mapping[str, str]


def refused_flags(
    parser: FlagParser,
    python: str,
    command: Sequence[str],
    variables: Mapping[str, str] = {},
    cache: Path | None = None,
) -> list[tuple[str, str]]:
    """Keys and reasons; empty if the parser accepts the command. `variables`: environment variables of the server;
    `cache`: folder of accepted command lines (None: the user's cache)."""
    engine, title = parser.engine, parser.engine.title
    version = installed_version(Path(python), engine)
    if version is None:
        missing = f"{title} is not installed in the environment of {python}; `make {engine.name}-cpu` makes one with it"
        return [(engine.key, missing)]
    if (unsupported := unsupported_version(engine, version)) is not None:
        return [(engine.key, unsupported)]
    flags = ["0" if word == PORT else word for word in _flags(command)]
    accepted = (cache or _user_cache()) / _cache_name(parser, python, version, flags)
    if accepted.is_file():
        return []
    code, output = _run(parser, python, flags, variables)
    if code == ACCEPTED:
        accepted.parent.mkdir(parents=True, exist_ok=True)
        accepted.touch()
    match = ERROR_TEXT.search(output)
    if code != WRONG_USAGE or match is None:
        return []  # not about the flags: the server's own error is better
    message = match["message"].strip()
    return [(_key(parser, message), f"{title} {version} reports: {message}")]


def _flags(command: Sequence[str]) -> list[str]:
    first = next((at for at, word in enumerate(command) if word.startswith("--")), len(command))
    return list(command[first:])


def _run(parser: FlagParser, python: str, flags: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """The exit code and the error output."""
    try:
        done = subprocess.run(
            [python, "-c", parser.script, *flags],
            env={**os.environ, **variables, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return UNKNOWN, ""
    return done.returncode, done.stderr.strip()


def _key(parser: FlagParser, message: str) -> str:
    """For example `<engine>.dtype` for `argument --dtype: invalid choice: ...`."""
    match = FLAG.search(message)
    if match is None:
        return parser.engine.name
    flag = match[0].removeprefix("--")
    if message.startswith("unrecognized"):
        return f"{parser.engine.name}.extra_args.{flag.replace('-', '_')}"
    return (SHARED_KEYS | dict(parser.keys)).get(flag, f"{parser.engine.name}.{flag.replace('-', '_')}")


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "areal-like" / "parsers"


def _cache_name(parser: FlagParser, python: str, version: str, flags: Sequence[str]) -> str:
    known = ["" if flag in ANY_VALUE else word for flag, word in zip(["", *flags], flags, strict=False)]
    text = json.dumps([parser.script, python, version, known])
    return f"{parser.engine.name}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
