"""A run's configuration is written down without references. When the run is resumed with another value, what followed
that key must follow it again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from areal_like.config.aliases import ALIASES
from areal_like.config.checks.interpolation import WHOLE
from areal_like.config.loaded import MISSING, at


def references(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The keys whose whole value is that of another one, and which."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from references(value, f"{prefix}{name}.")
        elif isinstance(value, str) and (found := WHOLE.fullmatch(value)):
            yield f"{prefix}{name}", ALIASES.get(found[1], found[1])


def followers(values: Mapping[str, Any], follows: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """Overrides for the keys that follow one of those that `words` change; not for those that have been given a value
    of their own."""
    names = [word.partition("=")[0].lstrip("+") for word in words]
    changed, found = {ALIASES.get(name, name) for name in names}, []
    waiting = {path: target for path, target in follows.items() if path not in changed}
    while ready := [path for path, target in waiting.items() if target in changed]:
        for path in ready:
            target = waiting.pop(path)
            if at(values, path, MISSING) == at(values, target):
                found.append(f"{path}=${{{target}}}")
                changed.add(path)
    return found
