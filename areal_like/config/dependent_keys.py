"""Keys that repeat another key in a file: where the command line changes that key, they follow it."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from areal_like.config.checks.agreement import GROUP_SIZES
from areal_like.config.checks.key_rules import copied_keys
from areal_like.config.engines import engines
from areal_like.config.schema import Schema

ABSENT: Any = object()


def dependent_keys(schema: Schema) -> dict[str, str]:
    """Dependent key -> the key that it repeats, in any file; the configuration of a run has more."""
    sizes = dict.fromkeys(GROUP_SIZES, "gconfig.n_samples")
    return {**dict(copied_keys(schema)), **sizes, **{keys.model_key: "actor.path" for keys in engines()}}


def dependents_of(
    values: Mapping[str, Any], follows: Mapping[str, str], changed_paths: Collection[str]
) -> Iterator[str]:
    """The dependents of the changed paths, and their dependents; not those with a different value. `values` are those
    of the file by dotted path."""
    changed = set(changed_paths)
    waiting = {path: fact for path, fact in follows.items() if path not in changed}
    while ready := [path for path, fact in waiting.items() if fact in changed]:
        for path in ready:
            fact = waiting.pop(path)
            if values.get(path, ABSENT) == values.get(fact):
                changed.add(path)
                yield path
