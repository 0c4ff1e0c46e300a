"""A file that repeats a fact: where the command line gives the fact another value, its copies in the file follow."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from areal_like.config.checks.agreement import GROUP_SIZES, MUST_AGREE, SERVED_MODELS

DEPENDENT_KEYS: Mapping[str, str] = {
    **dict(MUST_AGREE),
    **dict.fromkeys(GROUP_SIZES, "gconfig.n_samples"),
    **dict.fromkeys(SERVED_MODELS.values(), "actor.path"),
}
"""Copy -> fact, of any file. That of a run knows more of them."""
ABSENT: Any = object()


def dependents_of(
    values: Mapping[str, Any], follows: Mapping[str, str], changed_paths: Collection[str]
) -> Iterator[str]:
    """The copies of what is set anew, and the copies of these; not those that have a value of their own. `values` are
    those of the file by dotted path."""
    changed = set(changed_paths)
    waiting = {path: fact for path, fact in follows.items() if path not in changed}
    while ready := [path for path, fact in waiting.items() if fact in changed]:
        for path in ready:
            fact = waiting.pop(path)
            if values.get(path, ABSENT) == values.get(fact):
                changed.add(path)
                yield path
