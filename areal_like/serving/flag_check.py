"""What an installed engine's own parser says of a command line. It imports the engine, which takes it many seconds:
what was taken once is remembered, by interpreter, version and flags."""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from areal_like.process.identity import PORT
from areal_like.serving.installations import TITLES, installed_version, unsupported_version

TIMEOUT_S = 180
ACCEPTED, WRONG_USAGE, UNKNOWN = 0, 2, -1
"""How a parser ends."""
FLAG = re.compile(r"--[a-z][\w-]*")
ERROR_TEXT = re.compile(r"error: (?P<what>.*)\Z", re.DOTALL)
SHARED_KEYS = {"model": "actor.path", "model-path": "actor.path"}


class FlagParser(NamedTuple):
    """`script` gets the flags as its arguments and ends as argparse does; `keys` says where flags come from that are
    no key of the engine's section of the same name."""

    engine: str
    script: str
    keys: Mapping[str, str]


def refused_flags(
    parser: FlagParser,
    python: str,
    command: Sequence[str],
    variables: Mapping[str, str] = {},
    memory: Path | None = None,
) -> list[tuple[str, str]]:
    """Keys and reasons; nothing where the parser takes the command. `variables` are those that the server gets,
    `memory` is the folder with what was asked before (None: the user's cache)."""
    engine, title = parser.engine, TITLES[parser.engine]
    version = installed_version(Path(python), engine)
    if version is None:
        reason = f"there is no {title} in the environment of {python}; `make {engine}-cpu` makes one"
        return [(f"{engine}.python", reason)]
    if (why := unsupported_version(engine, version)) is not None:
        return [(f"{engine}.python", why)]
    flags = ["0" if word == PORT else word for word in _flags(command)]
    kept = (memory or _cache()) / _name(parser, python, version, flags)
    if kept.is_file():
        return []
    code, said = _ask(parser, python, flags, variables)
    if code == ACCEPTED:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()
    found = ERROR_TEXT.search(said)
    if code != WRONG_USAGE or found is None:
        return []  # a fault that is not about the flags: the server will tell it better
    what = found["what"].strip()
    return [(_key(parser, what), f"{title} {version} says: {what}")]


def _flags(command: Sequence[str]) -> list[str]:
    first = next((at for at, word in enumerate(command) if word.startswith("--")), len(command))
    return list(command[first:])


def _ask(parser: FlagParser, python: str, flags: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """The exit code, and what it has against the flags."""
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


def _key(parser: FlagParser, said: str) -> str:
    """Such as vllm.dtype of `argument --dtype: invalid choice: ...`."""
    named = FLAG.search(said)
    if named is None:
        return parser.engine
    flag = named[0].removeprefix("--")
    if said.startswith("unrecognized"):
        return f"{parser.engine}.extra_args.{flag.replace('-', '_')}"
    return (SHARED_KEYS | dict(parser.keys)).get(flag, f"{parser.engine}.{flag.replace('-', '_')}")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "areal-like" / "parsers"


def _name(parser: FlagParser, python: str, version: str, flags: Sequence[str]) -> str:
    text = json.dumps([parser.script, python, version, list(flags)])
    return f"{parser.engine}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
