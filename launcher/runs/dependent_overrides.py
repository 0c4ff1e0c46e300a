"""A run's configuration is written down without references. When the run is resumed with another value, what followed
that key must follow it again."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_like.config.dependent_keys import dependents_of
from areal_like.config.interpolation import WHOLE
from areal_like.config.loaded import MISSING, value_at
from areal_like.config.names import ALIASES
from areal_like.config.sources.library import find_config
from areal_like.process.run import CONFIG, RUN_FACTS


def whole_references(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The keys whose whole value is that of another one, and which."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from whole_references(value, f"{prefix}{name}.")
        elif isinstance(value, str) and (found := WHOLE.fullmatch(value)):
            yield f"{prefix}{name}", ALIASES.get(found[1], found[1])


def dependent_overrides(values: Mapping[str, Any], follows: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """Overrides for the keys that follow one of those that `words` change; not for those that have been given a value
    of their own."""
    names = [word.partition("=")[0].lstrip("+") for word in words]
    flat = {path: value_at(values, path, MISSING) for path in (*follows, *follows.values())}
    changed = {ALIASES.get(name, name) for name in names}
    return [f"{path}=${{{follows[path]}}}" for path in dependents_of(flat, follows, changed)]


def recorded_references(config: str | Path) -> dict[str, str]:
    """Which keys followed which, where the file is the configuration of a run."""
    file = find_config(config)
    said = file.parent / RUN_FACTS
    if file.name != CONFIG or not said.is_file():
        return {}
    follows: dict[str, str] = json.loads(said.read_text(encoding="utf-8")).get("follows", {})
    return follows
