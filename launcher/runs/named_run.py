"""The run that a command names, and the words about it: `step=20`, `cluster.fileroot=DIR`."""

import os
from collections.abc import Sequence
from pathlib import Path

from areal_like.config.problems import ConfigError, Problem
from launcher.runs.registry import ambiguity_text, find_runs

STEP = "step="
ROOT_OVERRIDES, DEFAULT_ROOT = ("cluster.fileroot=", "fileroot="), "runs"


def unknown_words(words: Sequence[str], known: Sequence[str], message: str) -> list[Problem]:
    """A problem for each word that does not begin as a known one, or say where runs are."""
    others = [word for word in words if not word.startswith((*known, *ROOT_OVERRIDES))]
    return [Problem(word, message, "command line") for word in others]


def last_value(words: Sequence[str], *names: str) -> str | None:
    """The text behind `step=` or the like; of several words the last."""
    return next((word.partition("=")[2] for word in reversed(words) if word.startswith(names)), None)


def runs_root(words: Sequence[str]) -> Path:
    """Where runs are, by an override of `cluster.fileroot` if there is one."""
    root = (last_value(words, *ROOT_OVERRIDES) or "").strip("'\"")
    return Path(os.path.abspath(Path(root or DEFAULT_ROOT).expanduser()))


def find_run(name: str, words: Sequence[str], key: str) -> Path:
    """Looks below `runs_root`, and in the registry; an error begins with `key`."""
    root = runs_root(words)
    matches = find_runs(name, root, Path.cwd())
    if len(matches) != 1:
        raise ConfigError([Problem(key, ambiguity_text(name, matches, root), "command line")])
    return matches[0]


def name_and_step(text: str, words: Sequence[str]) -> tuple[str, str | None]:
    """`RUN@20` -> the run and its step 20. A run or a folder may have such a name itself."""
    name, at, step = text.rpartition("@")
    if not (at and step.isdecimal()) or Path(text).expanduser().exists():
        return text, None
    return (text, None) if find_runs(text, runs_root(words), Path.cwd()) else (name, step)
