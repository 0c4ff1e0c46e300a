"""Keys that referred to another key (`${gconfig.temperature}`) in the original configuration of a run.

A run's configuration is saved without references: where a resumed run changes a key, its dependents follow it again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_like.config.dependent_keys import dependents_of
from areal_like.config.dotted_path import MISSING, value_at
from areal_like.config.interpolation import WHOLE
from areal_like.config.names import ALIASES
from areal_like.config.sources.library import find_config
from areal_like.process.run import CONFIG, RUN_FACTS


def whole_references(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Pairs of a key whose whole value is a reference, and the key that it refers to."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from whole_references(value, f"{prefix}{name}.")
        elif isinstance(value, str) and (match := WHOLE.fullmatch(value)):
            yield f"{prefix}{name}", ALIASES.get(match[1], match[1])


def dependent_overrides(values: Mapping[str, Any], follows: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """Overrides for the keys that refer to a key that `overrides` change, unless they were set themselves."""
    names = [override.partition("=")[0].lstrip("+") for override in overrides]
    flat = {path: value_at(values, path, MISSING) for path in (*follows, *follows.values())}
    changed = {ALIASES.get(name, name) for name in names}
    return [f"{path}=${{{follows[path]}}}" for path in dependents_of(flat, follows, changed)]


def recorded_references(config: str | Path) -> dict[str, str]:
    """The recorded references, where the file is the configuration of a run."""
    file = find_config(config)
    facts = file.parent / RUN_FACTS
    if file.name != CONFIG or not facts.is_file():
        return {}
    follows: dict[str, str] = json.loads(facts.read_text(encoding="utf-8")).get("follows", {})
    return follows
